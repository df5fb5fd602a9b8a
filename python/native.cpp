// The engine as faststream/__init__.py sees it: requests come as JSON, which api/ reads as it does
// for batches and the server, and answers go as dictionaries.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/answer.h"
#include "api/request_body.h"
#include "engine/embedder.h"
#include "engine/engine.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "engine/perplexity.h"
#include "model_file/model_file.h"

namespace nb = nanobind;

namespace faststream::python {
namespace {

nb::dict logprob_dict(const TokenLogprob& entry, const Engine& engine) {
  nb::dict dict;
  dict["token"] = entry.token;
  dict["text"] = engine.token_text(entry.token);
  dict["logprob"] = double{entry.logprob};
  return dict;
}

nb::list logprobs_list(std::span<const PositionLogprobs> positions, const Engine& engine) {
  nb::list list;
  for (const PositionLogprobs& position : positions) {
    nb::dict dict = logprob_dict(position.chosen, engine);
    nb::list top;
    for (const TokenLogprob& entry : position.top) top.append(logprob_dict(entry, engine));
    dict["top"] = top;
    list.append(dict);
  }
  return list;
}

// An array that owns its numbers.
template <size_t kDimensions>
nb::ndarray<nb::numpy, float, nb::ndim<kDimensions>> array_of(
    std::vector<float> numbers, const std::array<size_t, kDimensions>& shape) {
  auto held = std::make_unique<std::vector<float>>(std::move(numbers));
  float* data = held->data();
  const nb::capsule owner(held.release(), [](void* memory) noexcept {
    delete static_cast<std::vector<float>*>(memory);
  });
  return {data, kDimensions, shape.data(), owner};
}

// Throws what a handler of a signal does: KeyboardInterrupt after Ctrl-C.
void check_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// What the engine's thread says of a request, until Python takes it.
struct Progress {
  struct Piece {
    std::string text;
    int32_t token = 0;
    std::optional<float> logprob;
  };

  std::mutex mutex;
  std::condition_variable news;
  // Guarded by mutex:
  std::vector<Piece> pieces;
  std::optional<Result> result;
  std::string error;
  bool done = false;
  PyObject* wake = nullptr;  // owned; called, and let go, by a thread that holds the GIL

  // Tells asyncio, once for what has come since it looked.
  void call_wake(PyObject* callable, bool last) {
    if (callable == nullptr) return;
    const nb::gil_scoped_acquire gil;
    PyObject* said = PyObject_CallNoArgs(callable);
    if (said == nullptr) PyErr_Clear();  // the event loop is closed: nobody waits
    Py_XDECREF(said);
    if (last) Py_DECREF(callable);
  }

  void add(Piece piece) {
    PyObject* callable = nullptr;
    {
      const std::lock_guard lock(mutex);
      if (pieces.empty()) callable = wake;
      pieces.push_back(std::move(piece));
    }
    news.notify_one();
    call_wake(callable, false);
  }

  void finish(Result&& end, const std::string& why) {
    PyObject* callable = nullptr;
    {
      const std::lock_guard lock(mutex);
      result = std::move(end);
      error = why;
      done = true;
      callable = std::exchange(wake, nullptr);
    }
    news.notify_one();
    call_wake(callable, true);
  }
};

class NativeEngine;

// A request under way.
class Call {
 public:
  Call(std::shared_ptr<NativeEngine> engine, std::shared_ptr<Progress> progress, RequestId id,
       bool has_tools, bool show_special, std::vector<std::string> idle)
      : engine_(std::move(engine)),
        progress_(std::move(progress)),
        id_(id),
        has_tools_(has_tools),
        show_special_(show_special),
        idle_(std::move(idle)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { cancel(); }

  // Whether there is something new, at once or within so many seconds.
  bool wait(double seconds);
  bool done() const {
    const std::lock_guard lock(progress_->mutex);
    return progress_->done;
  }
  // (text, token, logprob or None) of what has come since the last call.
  nb::list take_pieces() {
    std::vector<Progress::Piece> pieces;
    {
      const std::lock_guard lock(progress_->mutex);
      pieces.swap(progress_->pieces);
    }
    nb::list list;
    for (const Progress::Piece& piece : pieces) {
      list.append(nb::make_tuple(piece.text, piece.token, piece.logprob));
    }
    return list;
  }
  nb::dict result();
  void cancel();
  // Of the request's settings, those that have no effect on it, and why.
  [[nodiscard]] const std::vector<std::string>& idle() const { return idle_; }

 private:
  std::shared_ptr<NativeEngine> engine_;
  std::shared_ptr<Progress> progress_;
  RequestId id_;
  bool has_tools_;
  bool show_special_;
  std::vector<std::string> idle_;
};

// A model that writes text, or an encoder; closed, neither. A process that was forked has none of
// its threads, and must leave it alone.
class NativeEngine : public std::enable_shared_from_this<NativeEngine> {
 public:
  NativeEngine(const std::string& path, const EngineOptions& options) {
    const nb::gil_scoped_release released;
    if (read_config(ModelFile::open(path)).output.none) {
      if (!options.adapters.empty()) {
        throw UsageError("--adapters: the model writes no text; leave them out");
      }
      embedder_ = std::make_shared<Embedder>(path, EmbedderOptions{.device = options.device,
                                                                   .threads = options.threads,
                                                                   .context = options.context});
    } else {
      engine_ = {new Engine(path, options), end_engine};
    }
  }
  NativeEngine(const NativeEngine&) = delete;
  NativeEngine& operator=(const NativeEngine&) = delete;
  ~NativeEngine() { close(); }

  // Cancels what runs.
  void close() {
    auto engine = std::exchange(engine_, nullptr);
    auto embedder = std::exchange(embedder_, nullptr);
    if (is_at_home()) return;
    new std::shared_ptr<Engine>(std::move(engine));  // which thus stay for ever
    new std::shared_ptr<Embedder>(std::move(embedder));
  }

  // Whether this is the process that it was made in.
  [[nodiscard]] bool is_at_home() const { return process_ == getpid(); }
  void require_home() const {
    if (is_at_home()) return;
    throw UsageError(
        "the engine belongs to the process that this one was forked from; make one here, or start "
        "processes by \"spawn\"");
  }

  // To hold, as callers do an embedder: another thread may close it where they let go of the GIL.
  std::shared_ptr<Engine> engine() const {
    require_home();
    if (engine_) return engine_;
    throw UsageError(embedder_ ? "the model gives vectors or scores, and writes no text"
                               : "the engine is closed");
  }

  nb::dict info() const {
    nb::dict dict;
    dict["writes_text"] = engine_ != nullptr;
    if (embedder_) {
      const EmbedderInfo& info = embedder_->info();
      dict["device"] = info.device;
      dict["context"] = info.context;
      dict["vector_size"] = info.vector_size;
      dict["scores"] = info.scores;
      dict["pairs"] = info.pairs;
      return dict;
    }
    const std::shared_ptr<Engine> engine = this->engine();
    const EngineInfo& info = engine->info();
    dict["device"] = info.device;
    dict["context"] = info.context;
    dict["slots"] = info.slots;
    dict["can_chat"] = engine->can_chat();
    dict["adapters"] = info.adapters;
    return dict;
  }

  // `json`: a request in the form of a batch's lines (docs/batch.md).
  std::shared_ptr<Call> submit(const std::string& json, bool streams, const nb::object& wake) {
    const std::shared_ptr<Engine> engine = this->engine();
    api::ParsedRequest parsed{.request = recommended_request(engine->info())};
    api::RequestObject object(json, "the request", "");
    api::read_own_request(
        JsonView(object.options(), ""), object.object(),
        [](std::string_view, const nlohmann::json&) { return false; }, parsed);
    Request& request = parsed.request;
    const auto* conversation = std::get_if<ChatPrompt>(&request.prompt);
    const bool has_tools = conversation != nullptr && !conversation->tools.empty();
    const bool show_special = request.show_special;
    const auto progress = std::make_shared<Progress>();
    Callbacks callbacks;
    if (streams) {
      callbacks.on_delta = [progress](const Delta& delta) {
        Progress::Piece piece{.text = std::string(delta.text), .token = delta.token, .logprob = {}};
        if (!delta.logprobs.empty()) piece.logprob = delta.logprobs.back().chosen.logprob;
        progress->add(std::move(piece));
      };
    }
    callbacks.on_finish = [progress](Result result, const std::string& error) {
      progress->finish(std::move(result), error);
    };
    if (!wake.is_none()) progress->wake = wake.inc_ref().ptr();
    RequestId id = 0;
    try {
      const nb::gil_scoped_release released;
      id = engine->submit(std::move(request), std::move(callbacks));
    } catch (...) {
      if (progress->wake != nullptr) Py_DECREF(std::exchange(progress->wake, nullptr));
      throw;
    }
    return std::make_shared<Call>(shared_from_this(), progress, id, has_tools, show_special,
                                  std::move(parsed.idle));
  }

  void cancel(RequestId id) const {
    if (engine_) engine_->cancel(id);
  }

  std::vector<int32_t> tokenize(const std::string& text, bool parse_special) const {
    const std::shared_ptr<Engine> engine = this->engine();
    const nb::gil_scoped_release released;
    return engine->tokenize(text, parse_special);
  }
  nb::bytes detokenize(const std::vector<int64_t>& tokens) const {
    const std::shared_ptr<Engine> engine = this->engine();
    const std::string text = engine->detokenize(token_ids(tokens, *engine));
    return nb::bytes(text.data(), text.size());
  }

  // float32 [texts, vector_size]; NaN where a text has no tokens.
  nb::ndarray<nb::numpy, float, nb::ndim<2>> embed(const std::vector<std::string>& texts,
                                                   const std::optional<std::string>& query) {
    require_home();
    const std::shared_ptr<Embedder> embedder = embedder_;
    if (!embedder) {
      throw UsageError(engine_ ? "the model writes text, and gives no vectors"
                               : "the engine is closed");
    }
    const auto width = static_cast<size_t>(embedder->info().vector_size);
    std::vector<TextVector> vectors;
    {
      const nb::gil_scoped_release released;
      const std::lock_guard lock(embedding_);
      vectors = query ? embedder->score(*query, texts) : embedder->embed(texts);
    }
    std::vector<float> values(vectors.size() * width, std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < vectors.size(); ++i) {
      std::ranges::copy(vectors[i].values, values.begin() + static_cast<ptrdiff_t>(i * width));
    }
    return array_of<2>(std::move(values), {vectors.size(), width});
  }

  // float32 [tokens - 1], of a text those of its windows.
  nb::ndarray<nb::numpy, float, nb::ndim<1>> score(
      const std::variant<std::string, std::vector<int64_t>>& prompt) const {
    const std::shared_ptr<Engine> engine = this->engine();
    std::vector<float> scores;
    {
      const nb::gil_scoped_release released;
      const auto* tokens = std::get_if<std::vector<int64_t>>(&prompt);
      scores = tokens != nullptr ? engine->score(token_ids(*tokens, *engine))
                                 : engine->score(std::get<std::string>(prompt), check_signals);
    }
    const size_t count = scores.size();
    return array_of<1>(std::move(scores), {count});
  }

 private:
  static std::vector<int32_t> token_ids(const std::vector<int64_t>& tokens, const Engine& engine) {
    const int64_t vocab = engine.info().vocab;
    for (const int64_t token : tokens) {
      if (token >= 0 && token < vocab) continue;
      throw Error("the token " + std::to_string(token) + " is none of the model's tokens, 0 to " +
                  std::to_string(vocab - 1));
    }
    return {tokens.begin(), tokens.end()};
  }
  // Waits for the engine's thread, which may want the GIL to tell of an end. Whoever lets go of an
  // engine holds it.
  static void end_engine(Engine* engine) {
    const nb::gil_scoped_release released;
    delete engine;
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Embedder> embedder_;
  std::mutex embedding_;  // one thread at a time
  pid_t process_ = getpid();
};

bool Call::wait(double seconds) {
  engine_->require_home();
  const nb::gil_scoped_release released;
  std::unique_lock lock(progress_->mutex);
  return progress_->news.wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return progress_->done || !progress_->pieces.empty(); });
}

nb::dict Call::result() {
  const std::lock_guard lock(progress_->mutex);
  if (!progress_->error.empty()) throw Error(progress_->error);
  const Result& result = *progress_->result;
  const std::shared_ptr<Engine> held = engine_->engine();
  const Engine& engine = *held;
  const auto text_of = [&](std::span<const int32_t> tokens) { return engine.detokenize(tokens); };
  nb::list outputs;
  for (const Output& output : result.outputs) {
    const ParsedAnswer answer = api::parse_answer(output, has_tools_, show_special_, text_of);
    nb::dict dict;
    dict["text"] = answer.content;
    dict["finish_reason"] = std::string(finish_reason_name(output.finish_reason));
    dict["tokens"] = output.tokens;
    dict["score"] = output.score;
    dict["logprobs"] = logprobs_list(output.logprobs, engine);
    dict["tool_calls"] = api::json_text(api::tool_calls_json(answer.tool_calls, "call_"));
    outputs.append(dict);
  }
  nb::dict dict;
  dict["outputs"] = outputs;
  dict["prompt_tokens"] = result.prompt_tokens;
  dict["cached_tokens"] = result.cached_tokens;
  dict["seed"] = result.seed;
  dict["prompt_seconds"] = result.prompt_seconds;
  dict["generation_seconds"] = result.generation_seconds;
  return dict;
}

void Call::cancel() {
  if (engine_->is_at_home() && !done()) engine_->cancel(id_);
}

nb::dict perplexity(const std::string& path, const std::string& text,
                    const std::optional<std::string>& against, const std::string& device,
                    int32_t threads, int64_t context) {
  Perplexity found;
  {
    const nb::gil_scoped_release released;
    const EngineOptions options{.device = device,
                                .threads = threads,
                                .context = context,
                                .slots = 1,
                                .check_interrupted = check_signals};
    LoadedModel model(path, options, kPerplexityStepTokens);
    if (model.answers) throw UsageError("the model answers to its prompts, and continues no text");
    std::optional<LoadedModel> reference;
    if (against) reference.emplace(*against, options, kPerplexityStepTokens);
    found = measure_perplexity(model, reference ? &*reference : nullptr, text, check_signals);
  }
  nb::dict dict;
  dict["value"] = found.value;
  dict["standard_error"] = found.standard_error;
  dict["tokens"] = found.n_tokens;
  if (found.divergence) {
    dict["reference_value"] = found.divergence->reference_perplexity;
    dict["mean_kl"] = found.divergence->mean_kl;
    dict["kl_99th"] = found.divergence->kl_99th;
    dict["top_token_agrees"] = found.divergence->top_token_agrees;
  }
  return dict;
}

EngineOptions engine_options(std::string device, int32_t replicas, int32_t stages, int32_t threads,
                             int64_t context, int32_t slots, int64_t kv_tokens, std::string kv,
                             int64_t memory, int32_t chunk, std::string speculate,
                             std::string chat_template,
                             const std::vector<std::pair<std::string, std::string>>& adapters) {
  if (memory < 0) throw UsageError("--memory " + std::to_string(memory) + ": give bytes, or 0");
  std::vector<AdapterOption> beside;
  for (const auto& [name, path] : adapters) beside.push_back({.name = name, .path = path});
  return {.device = std::move(device),
          .threads = threads,
          .stages = stages,
          .replicas = replicas,
          .context = context,
          .slots = slots,
          .slots_for_search = true,
          .kv_tokens = kv_tokens,
          .kv = std::move(kv),
          .memory = static_cast<size_t>(memory),
          .chunk = chunk,
          .adapters = std::move(beside),
          .speculate = std::move(speculate),
          .chat_template = std::move(chat_template)};
}

}  // namespace
}  // namespace faststream::python

// NOLINTNEXTLINE: nanobind's macro
NB_MODULE(_native, module) {
  using namespace faststream::python;
  nb::set_leak_warnings(false);  // of engines that live until the interpreter ends
  const nb::exception<faststream::Error> error(module, "Error", PyExc_RuntimeError);
  nb::exception<faststream::UsageError>(module, "UsageError", error.ptr());

  module.def("perplexity", &perplexity, nb::arg("path"), nb::arg("text"), nb::arg("against").none(),
             nb::arg("device"), nb::arg("threads"), nb::arg("context"));

  nb::class_<Call>(module, "Call")
      .def("wait", &Call::wait, nb::arg("seconds"))
      .def("done", &Call::done)
      .def("take_pieces", &Call::take_pieces)
      .def("result", &Call::result)
      .def("cancel", &Call::cancel)
      .def("idle", &Call::idle);

  nb::class_<NativeEngine>(module, "NativeEngine")
      .def(nb::new_([](const std::string& path, std::string device, int32_t replicas,
                       int32_t stages, int32_t threads, int64_t context, int32_t slots,
                       int64_t kv_tokens, std::string kv, int64_t memory, int32_t chunk,
                       std::string speculate, std::string chat_template,
                       const std::vector<std::pair<std::string, std::string>>& adapters) {
             return std::make_shared<NativeEngine>(
                 path, engine_options(std::move(device), replicas, stages, threads, context, slots,
                                      kv_tokens, std::move(kv), memory, chunk, std::move(speculate),
                                      std::move(chat_template), adapters));
           }),
           nb::arg("path"), nb::kw_only(), nb::arg("device"), nb::arg("replicas"),
           nb::arg("pipeline"), nb::arg("threads"), nb::arg("context"), nb::arg("slots"),
           nb::arg("kv_tokens"), nb::arg("kv"), nb::arg("memory"), nb::arg("chunk"),
           nb::arg("speculate"), nb::arg("chat_template"), nb::arg("adapters"))
      .def("close", &NativeEngine::close)
      .def("info", &NativeEngine::info)
      .def("submit", &NativeEngine::submit, nb::arg("json"), nb::arg("streams"),
           nb::arg("wake").none())
      .def("tokenize", &NativeEngine::tokenize, nb::arg("text"), nb::arg("parse_special"))
      .def("detokenize", &NativeEngine::detokenize, nb::arg("tokens"))
      .def("score", &NativeEngine::score, nb::arg("prompt"))
      .def("embed", &NativeEngine::embed, nb::arg("texts"), nb::arg("query").none());
}
