// What callers use: it hands their requests to replicas of the model.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/job.h"
#include "engine/load_weights.h"
#include "engine/local_replica.h"
#include "engine/model_on_device.h"
#include "engine/perplexity.h"
#include "engine/ranks.h"
#include "engine/remote_replica.h"
#include "engine/replica.h"
#include "support/machine.h"
#include "support/utf8.h"

namespace faststream {
namespace {

// How often generate() asks its caller whether to go on when there is no new text.
constexpr std::chrono::milliseconds kPollInterval(50);

// The devices of each replica: so many of the names each, or all of them the CPU.
std::vector<std::string> devices_of_replicas(const EngineOptions& options) {
  const std::vector<std::string> names = device_names(options.device);
  const auto count = static_cast<size_t>(options.replicas);
  if (names.size() == 1 && names.front() == "cpu") return std::vector(count, names.front());
  if (names.size() % count != 0) {
    throw UsageError("--replicas " + std::to_string(count) + " --device " + options.device +
                     ": each replica has as many devices; name " + std::to_string(count) +
                     ", or a multiple, such as cuda:0,1, or cpu, whose threads they share");
  }
  std::vector<std::string> devices(count);
  for (size_t i = 0; i < names.size(); ++i) {
    std::string& own = devices[i * count / names.size()];
    own += (own.empty() ? "" : ",") + names[i];
  }
  return devices;
}

// What each replica is made with: those on one device share it.
std::vector<EngineOptions> options_of_replicas(const EngineOptions& options) {
  if (options.replicas == 1) return {options};
  if (options.replicas < 1) {
    throw UsageError("--replicas " + std::to_string(options.replicas) + ": give 1 or more");
  }
  if (options.link != nullptr) {
    throw UsageError("--replicas: processes run one model together; start one process");
  }
  const std::vector<std::string> devices = devices_of_replicas(options);
  std::vector<EngineOptions> all(devices.size(), options);
  for (size_t i = 0; i < all.size(); ++i) {
    EngineOptions& own = all[i];
    own.device = devices[i];
    const auto sharing = std::ranges::count(devices, own.device);
    own.memory_part /= static_cast<double>(sharing);
    if (own.memory > 0) own.memory = std::max<size_t>(1, own.memory / static_cast<size_t>(sharing));
    if (own.device.starts_with("cpu")) {
      const int32_t threads = options.threads > 0 ? options.threads : available_threads();
      own.threads = std::max(1, threads / static_cast<int32_t>(sharing));
    }
    if (i > 0) own.load_progress = nullptr;  // all load at once
  }
  return all;
}

}  // namespace

struct Engine::Impl {
  Impl(const std::filesystem::path& path, const EngineOptions& options);

  /// This process's, or the first of them, for what is the same with all replicas.
  [[nodiscard]] LocalReplica& first() const {
    return static_cast<LocalReplica&>(*replicas.front());
  }
  /// The one that has least to do, of those whose device has failed no job if there are some.
  [[nodiscard]] Replica& next() const;
  RequestId submit(Request request, Callbacks callbacks);
  /// The same of one that a replica has failed, if nobody has had anything of its answer: the
  /// replica that has it now, or null.
  Replica* submit_again(Job& failed);
  void cancel(RequestId request) const;
  [[nodiscard]] EngineStats stats() const;
  void stop();

  std::vector<std::unique_ptr<Replica>> replicas;
  EngineInfo info;
  std::atomic<RequestId> next_id = 1;
  std::atomic<bool> stopping = false;
};

Engine::Impl::Impl(const std::filesystem::path& path, const EngineOptions& options) {
  const std::vector<EngineOptions> all = options_of_replicas(options);
  Replica::Rescue rescue;
  if (all.size() + options.replica_links.size() > 1)
    rescue = [this](Job& job) { return submit_again(job); };
  std::vector<std::future<std::unique_ptr<Replica>>> others;
  const auto load = [&others](auto make) {
    others.push_back(
        std::async(std::launch::async, [make] { return std::unique_ptr<Replica>(make()); }));
  };
  for (size_t i = 1; i < all.size(); ++i) {
    load([&, &own = all[i]] { return std::make_unique<LocalReplica>(path, own, rescue); });
  }
  for (MessageLink* link : options.replica_links) {
    load([&, link] { return std::make_unique<RemoteReplica>(*link, path, options, rescue); });
  }
  replicas.push_back(std::make_unique<LocalReplica>(path, all.front(), rescue));
  for (auto& other : others) replicas.push_back(other.get());

  info = first().info();
  for (size_t i = 1; i < replicas.size(); ++i) {
    const EngineInfo& other = replicas[i]->info();
    first().make_jobs_for(other);
    info.device += "; " + other.device;
    info.context = std::min(info.context, other.context);
    info.slots += other.slots;
    info.kv_tokens += other.kv_tokens;
    info.weight_bytes += other.weight_bytes;
    info.kv_bytes += other.kv_bytes;
    info.load_seconds = std::max(info.load_seconds, other.load_seconds);
  }
}

Replica& Engine::Impl::next() const {
  // The others may have ended: stop() has this one do what callbacks submit.
  if (stopping) return first();
  const auto least = std::ranges::min_element(replicas, {}, [](const auto& replica) {
    return std::pair(replica->has_failed(), replica->n_unfinished());
  });
  return **least;
}

RequestId Engine::Impl::submit(Request request, Callbacks callbacks) {
  std::unique_ptr<Job> job = first().make_job(std::move(request), replicas.size() > 1);
  job->callbacks = std::move(callbacks);
  const RequestId id = job->id = next_id++;
  next().submit(std::move(job));
  return id;
}

Replica* Engine::Impl::submit_again(Job& failed) {
  const bool was_told = failed.first_token && failed.callbacks.on_delta;
  if (stopping || !failed.request || was_told) return nullptr;
  Replica& replica = next();
  if (replica.has_failed()) return nullptr;
  std::unique_ptr<Job> job;
  try {
    job = first().make_job(*std::move(failed.request), true);
  } catch (const std::exception&) {
    return nullptr;
  }
  job->callbacks = std::move(failed.callbacks);
  job->id = failed.id;
  replica.submit(std::move(job));
  return &replica;
}

void Engine::Impl::cancel(RequestId request) const {
  for (const auto& replica : replicas) replica->cancel(request);
}

EngineStats Engine::Impl::stats() const {
  EngineStats all;
  for (const auto& replica : replicas) {
    const EngineStats own = replica->stats();
    all.steps += own.steps;
    all.prompt_tokens += own.prompt_tokens;
    all.cached_tokens += own.cached_tokens;
    all.generated_tokens += own.generated_tokens;
    all.proposed_tokens += own.proposed_tokens;
    all.accepted_tokens += own.accepted_tokens;
    all.preemptions += own.preemptions;
    all.finished += own.finished;
    all.running += own.running;
    all.waiting += own.waiting;
    all.free_tokens += own.free_tokens;
    all.device_seconds += own.device_seconds;
  }
  return all;
}

void Engine::Impl::stop() {
  stopping = true;
  std::for_each(replicas.rbegin(), replicas.rend(), [](const auto& replica) { replica->stop(); });
}

Engine::Engine(const std::filesystem::path& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Engine::Engine(Engine&&) noexcept = default;

Engine& Engine::operator=(Engine&& other) noexcept {
  if (this == &other) return *this;
  if (impl_ != nullptr) impl_->stop();  // impl_ stays as it is for callbacks
  impl_ = std::move(other.impl_);
  return *this;
}

Engine::~Engine() {
  if (impl_ != nullptr) impl_->stop();
}

const EngineInfo& Engine::info() const { return impl_->info; }

EngineStats Engine::stats() const { return impl_->stats(); }

std::vector<int32_t> Engine::tokenize(std::string_view text, bool parse_special) const {
  return impl_->first().prompt_tokens(text, parse_special);
}

std::vector<int32_t> Engine::tokenize(const ChatPrompt& prompt, bool parse_special) const {
  return impl_->first().write(prompt).encode(impl_->first().prompt_tokenizer(), parse_special);
}

std::string Engine::detokenize(std::span<const int32_t> tokens) const {
  Detokenizer detokenizer(impl_->first().tokenizer(), false);
  std::string text;
  for (const int32_t token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

std::string Engine::chat_text(const ChatPrompt& prompt) const {
  return impl_->first().write(prompt).text();
}

std::string Engine::token_text(int32_t token) const {
  return valid_utf8(impl_->first().tokenizer().token_bytes(token));
}

std::string Engine::token_bytes(int32_t token) const {
  return impl_->first().tokenizer().token_bytes(token);
}

bool Engine::can_chat() const { return impl_->first().chat() != nullptr; }

bool Engine::chat_template_mentions(std::string_view variable) const {
  const ChatTemplate* chat = impl_->first().chat();
  return chat != nullptr && chat->mentions(variable);
}

std::vector<float> Engine::score(std::span<const int32_t> tokens) {
  if (tokens.size() < 2) return {};
  const Result result = submit({.prompt = std::vector(tokens.begin(), tokens.end()),
                                .max_tokens = 0,
                                .prompt_logprobs = 0})
                            .get();
  if (result.prompt_logprobs.empty()) throw Error("the engine ended before it scored the tokens");
  std::vector<float> scores;
  for (const PositionLogprobs& position : std::span(result.prompt_logprobs).subspan(1)) {
    scores.push_back(position.chosen.logprob);
  }
  return scores;
}

std::vector<float> Engine::score(std::string_view text, const std::function<void()>& between) {
  std::vector<float> all;
  for (const auto& window : text_windows(impl_->first().tokenizer(), text, info().context)) {
    const std::vector<float> scores = score(window);
    all.insert(all.end(), scores.begin(), scores.end());
    if (between) between();
  }
  return all;
}

RequestId Engine::submit(Request request, Callbacks callbacks) {
  return impl_->submit(std::move(request), std::move(callbacks));
}

std::future<Result> Engine::submit(Request request) {
  auto promise = std::make_shared<std::promise<Result>>();
  submit(std::move(request), {.on_finish = [promise](Result result, const std::string& error) {
           if (error.empty()) {
             promise->set_value(std::move(result));
           } else {
             promise->set_exception(std::make_exception_ptr(Error(error)));
           }
         }});
  return promise->get_future();
}

void Engine::cancel(RequestId request) { impl_->cancel(request); }

Result Engine::generate(Request request, const std::function<bool(std::string_view)>& on_text,
                        const std::function<void(const PromptProgress&)>& on_prompt) {
  // Shared with the engine's thread, which may outlast this call if `on_text` throws.
  struct Stream {
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<PromptProgress> prompt;  // not yet passed on
    std::string text;                      // likewise
    std::optional<Result> result;
    std::string error;
  };
  const auto stream = std::make_shared<Stream>();
  const RequestId id =
      submit(std::move(request), {.on_prompt =
                                      [stream](const PromptProgress& progress) {
                                        const std::lock_guard lock(stream->mutex);
                                        stream->prompt = progress;
                                        stream->wake.notify_one();
                                      },
                                  .on_delta =
                                      [stream](const Delta& delta) {
                                        if (delta.sample != 0) return;
                                        const std::lock_guard lock(stream->mutex);
                                        stream->text += delta.text;
                                        stream->wake.notify_one();
                                      },
                                  .on_finish =
                                      [stream](Result result, const std::string& error) {
                                        const std::lock_guard lock(stream->mutex);
                                        stream->result = std::move(result);
                                        stream->error = error;
                                        stream->wake.notify_one();
                                      }});
  // Cancels what is left behind by an exception; a finished request is no longer known.
  const auto cancel_at_end = [this](const RequestId* left) { cancel(*left); };
  const std::unique_ptr<const RequestId, decltype(cancel_at_end)> guard(&id, cancel_at_end);

  size_t passed_on = 0;
  for (;;) {
    std::optional<PromptProgress> prompt;
    std::string text;
    bool done = false;
    {
      std::unique_lock lock(stream->mutex);
      stream->wake.wait_for(lock, kPollInterval, [&] {
        return stream->prompt || !stream->text.empty() || stream->result;
      });
      prompt.swap(stream->prompt);
      text.swap(stream->text);
      done = stream->result.has_value();
    }
    if (prompt && on_prompt) on_prompt(*prompt);
    passed_on += text.size();
    if (!done) {
      if (!on_text(text)) cancel(id);
      continue;
    }
    if (!stream->error.empty()) throw Error(stream->error);
    // A cancelled text ends with what was held back.
    if (!stream->result->outputs.empty() && stream->result->outputs.front().text.size() > passed_on)
      text += std::string_view(stream->result->outputs.front().text).substr(passed_on);
    if (!text.empty()) (void)on_text(text);
    return std::move(*stream->result);
  }
}

Request recommended_request(const EngineInfo& info) {
  return {.prompt = {},
          .max_tokens = info.max_tokens,
          .min_tokens = info.min_tokens,
          .sampling = info.sampling,
          .search = info.search};
}

std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text,
                              bool parse_special, const std::function<void()>& check_interrupted) {
  const ModelFile file = ModelFile::open(model);
  const ModelConfig config = read_config(file);
  const auto tokenizer = make_prompt_tokenizer(
      file, config, make_tokenizer(file, config, check_interrupted), check_interrupted);
  return parse_special ? tokenizer->encode_parsing_special(text) : tokenizer->encode(text);
}

}  // namespace faststream
