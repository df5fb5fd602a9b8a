#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "backend/batch.h"
#include "engine/device.h"
#include "engine/runner.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

constexpr int32_t kMaxStepTokens = 2048;      // of a prompt, processed at once
constexpr size_t kMemoryReserve = 512 << 20;  // bytes left for workspaces and other programs

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Tokenizer> make_tokenizer(const ModelFile& file, int64_t model_vocab) {
  const auto section = file.header().find("tokenizer");
  if (section == file.header().end()) {
    throw Error(file.name() + ": the header has no \"tokenizer\"; convert the checkpoint again");
  }
  const TokenizerConfig config = tokenizer_config_from_json(*section, file.name());
  const TensorInfo* model = file.find("tokenizer");
  if (model == nullptr || model->dtype != DType::u8) {
    throw Error(file.name() + ": the tokenizer is missing; convert the checkpoint again");
  }
  auto tokenizer = make_sentencepiece_tokenizer(file.bytes(*model), config, file.name());
  if (tokenizer->vocab_size() > model_vocab) {
    throw Error(file.name() + ": the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                " tokens, but the model only " + std::to_string(model_vocab) +
                "; convert with the checkpoint's own tokenizer");
  }
  return tokenizer;
}

// Tokens of context: what was asked for, else the model's own, as far as memory reaches.
int64_t choose_context(const ModelConfig& config, int64_t asked, size_t bytes_per_token,
                       size_t free_bytes) {
  if (asked < 0 || asked > config.max_context) {
    throw UsageError("--context " + std::to_string(asked) + ": the model was trained for 1 to " +
                     std::to_string(config.max_context) + " tokens");
  }
  const size_t room = free_bytes > kMemoryReserve ? free_bytes - kMemoryReserve : 0;
  const auto fits = static_cast<int64_t>(std::min<size_t>(
      room / bytes_per_token / kPageTokens * kPageTokens, static_cast<size_t>(config.max_context)));
  if (asked == 0 && fits > 0) return fits;
  if (asked == 0 || asked > fits) {
    throw Error("the KV cache of " + std::to_string(std::max<int64_t>(asked, 1)) +
                " tokens does not fit into memory; give a smaller --context");
  }
  return asked;
}

}  // namespace

struct Engine::Impl {
  ModelFile file;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Runner> runner;
  EngineInfo info;

  Impl(const std::filesystem::path& model, const EngineOptions& options)
      : file(ModelFile::open(model)),
        config(read_config(file)),
        tokenizer(make_tokenizer(file, config.vocab)) {
    const auto start = Clock::now();
    const WeightSource weights = file.weights();
    backend =
        choose_backend(options.device, options.threads, weights.bytes.size() + kMemoryReserve);

    // Weights that are used in place take no further memory, so they are loaded before the rest is
    // sized; a device's copy is accounted for by asking afterwards.
    const BatchLimits limits{
        .max_tokens = static_cast<int32_t>(std::min<int64_t>(kMaxStepTokens, config.max_context)),
        .max_logits = 1};
    const size_t per_token = kv_bytes_per_token(config, backend->kv_dtype(config.weights));
    const size_t taken =
        weights.bytes.size() +
        activation_bytes(config, backend->activation_dtype(config.weights), limits);
    const size_t free = backend->free_memory();
    info.context =
        choose_context(config, options.context, per_token, free > taken ? free - taken : 0);

    const auto n_pages = static_cast<int32_t>((info.context + kPageTokens - 1) / kPageTokens);
    std::function<void(size_t)> progress;
    if (options.load_progress) {
      progress = [&](size_t done) { options.load_progress(done, weights.bytes.size()); };
    }
    runner = std::make_unique<Runner>(file, *backend,
                                      RunnerLimits{.n_pages = n_pages, .batch = limits}, progress);
    backend->synchronize();
    info.device = backend->description();
    info.load_seconds = seconds_since(start);
    info.weight_bytes = weights.bytes.size();
    info.kv_bytes = runner->kv_bytes();
  }

  // Processes all but the logits of a prompt, then draws the first token. False if cancelled.
  bool prefill(Sequence& sequence, std::span<const int32_t> prompt,
               const std::function<bool(std::string_view)>& on_text) {
    while (!prompt.empty()) {
      const auto chunk = prompt.first(std::min<size_t>(prompt.size(), kMaxStepTokens));
      prompt = prompt.subspan(chunk.size());
      const auto logits = prompt.empty() ? Chunk::Logits::last : Chunk::Logits::none;
      runner->step({{{.sequence = &sequence, .tokens = chunk, .logits = logits}}});
      if (!on_text("")) return false;
    }
    return true;
  }

  int32_t draw(const SamplingParams& params, const Sequence& sequence) {
    return runner->sample({{sampling_row(params, sequence)}}).front();
  }
};

Engine::Engine(const std::filesystem::path& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

const EngineInfo& Engine::info() const { return impl_->info; }

std::vector<int32_t> Engine::tokenize(std::string_view text) const {
  return impl_->tokenizer->encode(text);
}

GenerateResult Engine::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  Impl& impl = *impl_;
  validate(options.sampling);
  if (prompt.empty()) {
    throw Error(
        "the prompt is empty, and the model has no begin-of-sequence token to start from; "
        "give some text");
  }
  if (static_cast<int64_t>(prompt.size()) > impl.info.context) {
    throw Error("the prompt has " + std::to_string(prompt.size()) +
                " tokens, but the context only " + std::to_string(impl.info.context) +
                "; shorten the prompt or give a larger --context");
  }
  GenerateResult result;
  if (options.max_tokens == 0) return result;

  const auto start = Clock::now();
  Sequence sequence;
  // Pages go back even if a step or the callback throws.
  const auto give_back = [&](Sequence* s) { impl.runner->release(*s); };
  const std::unique_ptr<Sequence, decltype(give_back)> holder(&sequence, give_back);

  const bool begins_text =
      prompt.size() == 1 && impl.tokenizer->config().bos == std::optional<int32_t>(prompt.front());
  Detokenizer detokenizer(*impl.tokenizer, begins_text);

  if (!impl.prefill(sequence, prompt, on_text)) {
    result.finish_reason = FinishReason::cancelled;
    result.prompt_seconds = seconds_since(start);
    return result;
  }
  int32_t token = impl.draw(options.sampling, sequence);
  result.prompt_seconds = seconds_since(start);

  const auto first_token = Clock::now();
  for (;;) {
    result.tokens.push_back(token);
    if (impl.tokenizer->is_eos(token) && !options.ignore_eos) {
      result.finish_reason = FinishReason::eos;
      break;
    }
    if (!on_text(detokenizer.push(token))) {
      result.finish_reason = FinishReason::cancelled;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) {
      result.finish_reason = FinishReason::length;
      break;
    }
    if (sequence.n_cached == impl.info.context) {
      result.finish_reason = FinishReason::context;
      break;
    }
    impl.runner->step({{{.sequence = &sequence, .tokens = {&token, 1}}}});
    token = impl.draw(options.sampling, sequence);
  }
  if (const std::string rest = detokenizer.finish(); !rest.empty()) on_text(rest);
  result.generation_seconds = seconds_since(first_token);
  return result;
}

std::vector<int32_t> tokenize(const std::filesystem::path& model, std::string_view text) {
  const ModelFile file = ModelFile::open(model);
  return make_tokenizer(file, read_config(file).vocab)->encode(text);
}

}  // namespace faststream
