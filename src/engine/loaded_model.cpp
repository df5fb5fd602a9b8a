#include "engine/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "backend/batch.h"
#include "engine/default_sampling.h"
#include "engine/device.h"
#include "support/error.h"

namespace faststream {
namespace {

void check_size(const ModelFile& file, const Tokenizer& tokenizer, int64_t vocab) {
  if (tokenizer.vocab_size() <= vocab) return;
  throw Error(file.name() + ": the tokenizer has " + std::to_string(tokenizer.vocab_size()) +
              " tokens, but the model only " + std::to_string(vocab) +
              "; convert with the checkpoint's own tokenizer");
}

// name: kTokenizer or kEncoderTokenizer.
std::shared_ptr<const Tokenizer> tokenizer_named(const std::string& name, const ModelFile& file,
                                                 const CheckInterrupted& check_interrupted) {
  const std::string where = file.name() + ": " + name;
  const TokenizerConfig config = tokenizer_config_from_json(file.section(name), where);
  const TensorInfo* model = file.find(name);
  if (model == nullptr || model->dtype != DType::u8) {
    throw Error(file.name() + ": the tokenizer is missing; convert the checkpoint again");
  }
  return make_tokenizer(file.bytes(*model), config, file.name(), check_interrupted);
}

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(const ModelFile& file, const ModelConfig& config,
                                                const CheckInterrupted& check_interrupted) {
  auto tokenizer = tokenizer_named(kTokenizer, file, check_interrupted);
  check_size(file, *tokenizer, config.vocab);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> make_prompt_tokenizer(const ModelFile& file,
                                                       const ModelConfig& config,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       const CheckInterrupted& check_interrupted) {
  if (config.encoder && file.header().contains(kEncoderTokenizer)) {
    tokenizer = tokenizer_named(kEncoderTokenizer, file, check_interrupted);
  }
  check_size(file, *tokenizer, config.prompt_vocab());
  return tokenizer;
}

std::optional<AnswerRules> find_answer_rules(const ModelFile& file, const ModelConfig& config) {
  if (!config.encoder) return std::nullopt;
  return answer_rules_from_json(file.section("answers"), config.vocab, config.prompt_vocab(),
                                file.name() + ": answers");
}

void require_text(const ModelFile& file, const ModelConfig& config) {
  if (!config.output.none) return;
  const bool scores = config.pooling && config.pooling->scores;
  throw Error(file.name() + ": is an encoder, which writes no text; run it with " +
              (scores ? "--rank" : "--embed"));
}

RunnerLimits runner_limits(const MemoryPlan& plan) {
  return {.n_pages = pages_for(plan.kv_tokens),
          .n_modest_pages = pages_for(plan.kept_tokens),
          .sequences = plan.slots,
          .batch = plan.limits};
}

LoadedModel::LoadedModel(const std::filesystem::path& path, const EngineOptions& options,
                         int32_t max_logits)
    : file(ModelFile::open(path)),
      config(read_config(file)),
      tokenizer(make_tokenizer(file, config, options.check_interrupted)),
      prompt_tokenizer(make_prompt_tokenizer(file, config, tokenizer, options.check_interrupted)) {
  require_text(file, config);
  answers = find_answer_rules(file, config);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const size_t weight_bytes = file.weights().bytes.size();
  backend = choose_backend(options.device, options.threads, weight_bytes + kLeastRoom);
  EngineOptions wanted = options;
  if (options.slots_for_search && answers) {
    wanted.slots = std::max(wanted.slots, answers->search.beams);
  }
  const MemoryPlan plan =
      plan_memory(config, wanted, weight_bytes, max_logits, figures_of(*backend, config));

  std::function<void(size_t)> progress;
  if (options.load_progress) {
    progress = [&](size_t done) { options.load_progress(done, weight_bytes); };
  }
  runner = std::make_unique<Runner>(file, *backend, runner_limits(plan), progress);
  backend->synchronize();
  info = {.device = backend->description(),
          .context = plan.context,
          .max_context = config.max_context,
          .slots = plan.slots,
          .kv_tokens = plan.kv_tokens,
          .chunk = plan.chunk,
          .load_seconds = std::chrono::duration<double>(Clock::now() - start).count(),
          .weight_bytes = weight_bytes,
          .kv_bytes = runner->kv_bytes(),
          .sampling = default_sampling(file)};
  if (!answers) return;
  info.source_context = plan.source;
  info.sampling.no_repeat_ngram = answers->no_repeat_ngram;
  info.search = answers->search;
  info.max_tokens = answers->max_tokens;
  info.min_tokens = answers->min_tokens;
}

}  // namespace faststream
