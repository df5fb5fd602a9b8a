#include "engine/loaded_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backend/batch.h"
#include "engine/default_sampling.h"
#include "support/error.h"

namespace faststream {

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
    : ModelOnDevice(path, options.check_interrupted),
      prompt_tokenizer(make_prompt_tokenizer(file, config, tokenizer, options.check_interrupted)) {
  require_text(file, config);
  answers = find_answer_rules(file, config);
  EngineOptions wanted = options;
  if (options.slots_for_search && answers) {
    wanted.slots = std::max(wanted.slots, answers->search.beams);
  }
  MemoryPlan plan;
  place(options.device, options.threads, options.load_progress, [&](const auto& progress) {
    plan = plan_memory(config, wanted, weight_bytes(), max_logits, figures_of(*backend, config));
    runner = std::make_unique<Runner>(file, *backend, runner_limits(plan), progress);
  });
  info = {.device = backend->description(),
          .context = plan.context,
          .max_context = config.max_context,
          .slots = plan.slots,
          .kv_tokens = plan.kv_tokens,
          .chunk = plan.chunk,
          .load_seconds = load_seconds,
          .weight_bytes = weight_bytes(),
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
