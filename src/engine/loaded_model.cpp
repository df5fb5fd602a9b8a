#include "engine/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "backend/batch.h"
#include "engine/device.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr size_t kMemoryReserve = 512 << 20;  // bytes left for other programs

// What memory leaves for the KV cache, in tokens, a multiple of kPageTokens.
int64_t tokens_that_fit(size_t free_bytes, size_t bytes_per_token) {
  const size_t room = free_bytes > kMemoryReserve ? free_bytes - kMemoryReserve : 0;
  return static_cast<int64_t>(room / bytes_per_token / kPageTokens * kPageTokens);
}

int64_t whole_pages(int64_t tokens) { return int64_t{pages_for(tokens)} * kPageTokens; }

// Tokens of context: what was asked for, else the model's own, as far as memory reaches.
int64_t choose_context(const ModelConfig& config, const EngineOptions& options, int64_t fits) {
  const int64_t asked = options.context;
  if (asked < 0 || asked > config.max_context) {
    throw UsageError("--context " + std::to_string(asked) + ": the model was trained for 1 to " +
                     std::to_string(config.max_context) + " tokens");
  }
  if (options.kv_tokens < 0 || (options.kv_tokens > 0 && options.kv_tokens < asked)) {
    throw UsageError("--kv-tokens " + std::to_string(options.kv_tokens) +
                     ": the KV cache must hold at least one context of " +
                     std::to_string(std::max<int64_t>(asked, 1)) + " tokens");
  }
  if (options.kv_tokens > 0) fits = std::min(fits, options.kv_tokens);
  fits = std::min(fits, config.max_context);
  if (asked == 0 && fits > 0) return fits;
  if (asked == 0 || asked > fits) {
    throw Error("the KV cache of " + std::to_string(std::max<int64_t>(asked, 1)) +
                " tokens does not fit into memory; give a smaller --context");
  }
  return asked;
}

// Tokens of KV cache: what was asked for, else a full context for each slot, as memory allows.
int64_t choose_kv_tokens(const EngineOptions& options, int64_t context, int32_t slots,
                         int64_t fits) {
  if (options.kv_tokens == 0) return whole_pages(std::min(slots * whole_pages(context), fits));
  if (options.kv_tokens > fits) {
    throw Error("the KV cache of " + std::to_string(options.kv_tokens) +
                " tokens does not fit into memory; give a smaller --kv-tokens");
  }
  return whole_pages(options.kv_tokens);
}

int32_t choose_size(int32_t asked, int32_t preferred, int32_t least, int32_t most,
                    const std::string& option) {
  if (asked != 0 && (asked < least || asked > most)) {
    throw UsageError(option + " " + std::to_string(asked) + ": give " + std::to_string(least) +
                     " to " + std::to_string(most) + ", or leave it out");
  }
  return asked == 0 ? preferred : asked;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const ModelFile& file, int64_t model_vocab) {
  const TokenizerConfig config = tokenizer_config_from_json(file.section("tokenizer"), file.name());
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

LoadedModel::LoadedModel(const std::filesystem::path& path, const EngineOptions& options,
                         int32_t max_logits)
    : file(ModelFile::open(path)),
      config(read_config(file)),
      tokenizer(make_tokenizer(file, config.vocab)) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const WeightSource weights = file.weights();
  backend = choose_backend(options.device, options.threads, weights.bytes.size() + kMemoryReserve);

  const StepSizes sizes = backend->step_sizes();
  info.slots = choose_size(options.slots, sizes.sequences, 1, kMaxSlots, "--slots");
  info.chunk =
      choose_size(options.chunk, sizes.prompt_tokens, kMinChunk, kMaxStepTokens, "--chunk");

  // The KV cache is what remains after weights and activations, none of which is allocated yet.
  const int64_t step_tokens = std::min<int64_t>(kMaxStepTokens, info.slots * config.max_context);
  const BatchLimits limits{
      .max_tokens = static_cast<int32_t>(std::max<int64_t>(step_tokens, info.slots)),
      .max_logits = std::max(max_logits, info.slots)};
  const size_t per_token = kv_bytes_per_token(config, backend->kv_dtype(config.weights));
  const size_t taken =
      weights.bytes.size() +
      activation_bytes(config, backend->activation_dtype(config.weights), limits) +
      backend->scratch_bytes(step_bounds(config, limits, info.slots, config.max_context)) +
      static_cast<size_t>(limits.max_logits) * static_cast<size_t>(config.vocab) * sizeof(float);
  const size_t free = backend->free_memory();
  const int64_t fits = tokens_that_fit(free > taken ? free - taken : 0, per_token);
  info.context = choose_context(config, options, fits);
  info.kv_tokens = choose_kv_tokens(options, info.context, info.slots, fits);

  const auto n_pages = static_cast<int32_t>(info.kv_tokens / kPageTokens);
  std::function<void(size_t)> progress;
  if (options.load_progress) {
    progress = [&](size_t done) { options.load_progress(done, weights.bytes.size()); };
  }
  runner = std::make_unique<Runner>(file, *backend,
                                    RunnerLimits{.n_pages = n_pages, .batch = limits}, progress);
  backend->synchronize();
  info.device = backend->description();
  info.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  info.weight_bytes = weights.bytes.size();
  info.kv_bytes = runner->kv_bytes();
}

}  // namespace faststream
