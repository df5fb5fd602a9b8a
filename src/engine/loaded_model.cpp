#include "engine/loaded_model.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/batch.h"
#include "engine/default_sampling.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream {

std::optional<AnswerRules> find_answer_rules(const ModelFile& file, const ModelConfig& config) {
  if (!config.encoder || config.output.none) return std::nullopt;
  return answer_rules_from_json(file.section("answers"), config.vocab, config.prompt_vocab(),
                                file.name() + ": answers");
}

void require_text(const ModelFile& file, const ModelConfig& config) {
  if (!config.output.none) return;
  const bool scores = config.pooling && config.pooling->scores;
  throw Error(file.name() + ": is an encoder, which writes no text; run it with " +
              (scores ? "--rank" : "--embed"));
}

std::vector<ModelFile> open_adapters(const std::vector<AdapterOption>& adapters,
                                     const ModelConfig& config) {
  std::vector<ModelFile> files;
  std::set<std::string> names;
  if (adapters.size() > kMostAdapters) {
    throw UsageError("--adapter: a model takes " + std::to_string(kMostAdapters) +
                     " adapters at most");
  }
  for (const auto& [name, path] : adapters) {
    const std::string option = "--adapter " + printable(name);
    if (name.empty() || printable(name) != name) {
      throw UsageError("--adapter: " + in_quotes(name) + " is no name; give NAME=FILE");
    }
    if (!names.insert(name).second) {
      throw UsageError(option + ": is given twice; give each adapter a name of its own");
    }
    if (config.encoder) {
      throw UsageError(option + ": models with an encoder take no adapters beside them; merge it " +
                       "with faststream-convert --lora");
    }
    if (std::filesystem::is_directory(path)) {
      throw UsageError(option + ": " + path +
                       " is a folder; make a file of it with faststream-convert CHECKPOINT " +
                       "--lora " + path + " --adapter-for MODEL -o FILE");
    }
    files.push_back(ModelFile::open(path));
  }
  return files;
}

KvFormat choose_kv_format(const std::string& name, const ModelConfig& config,
                          const std::string& file, UntakenKv untaken) {
  const std::optional<KvFormat> format = kv_format_from_name(name);
  if (!format) throw UsageError("--kv " + name + ": give int8 or fp8, or leave it out");
  if (*format == KvFormat::plain) return *format;
  if (n_layers_of_format(config, {DType::f32, *format}) > 0) return *format;
  if (untaken == UntakenKv::is_left_out) return KvFormat::plain;
  throw UsageError("--kv " + name + ": no layer of " + file +
                   " keeps the keys and values of whole texts as it wants them (those of windows, "
                   "latents, sinks and encoders stay in 16 bits); leave it out");
}

namespace {

// Throws where heads that predict further tokens are wanted, but there are none.
std::vector<ModelConfig> find_predictors(const ModelFile& file) {
  std::vector<ModelConfig> predictors = read_config(file).predictors;
  if (predictors.empty()) {
    throw Error(
        file.name() +
        ": has no heads that predict further tokens for --speculate mtp; convert the "
        "checkpoint without --no-mtp, if it has some, or with --eagle DIR, or give --speculate "
        "lookup");
  }
  return predictors;
}

// As plan_memory() does, but says of which model there is too little memory.
MemoryPlan plan_memory_of(const std::string& name, const ModelConfig& config,
                          const EngineOptions& options, size_t weight_bytes, int32_t max_logits,
                          const BackendFigures& figures) try {
  return plan_memory(config, options, weight_bytes, max_logits, figures);
} catch (const UsageError&) {
  throw;
} catch (const Error& error) {
  throw Error(name + ": " + error.what());
}

}  // namespace

LoadedModel::LoadedModel(const std::filesystem::path& path, const EngineOptions& options,
                         int32_t max_logits, UntakenKv untaken_kv)
    : ModelOnDevice(path, options.check_interrupted),
      adapters(open_adapters(options.adapters, config)),
      prompt_tokenizer(make_prompt_tokenizer(file, config, tokenizer, options.check_interrupted)) {
  require_text(file, config);
  const ModelFiles files(file, adapters);
  if (!adapters.empty()) config = config_of_files(files);
  answers = find_answer_rules(file, config);
  const KvFormat kv = choose_kv_format(options.kv, config, file.name(), untaken_kv);
  const int32_t least_slots = options.slots_for_search && answers ? answers->search.beams : 1;
  if (!config.encoder) speculation = speculation_from_name(options.speculate);
  ranks = std::make_unique<Ranks>(options.device, options.threads, options.link, options.stages);
  if (speculation.kind == Speculation::Kind::mtp) config.predictors = find_predictors(file);
  MemoryPlan plan;
  const auto choose_limits = [&](const ModelConfig& share, const RankFigures& rank_figures) {
    BackendFigures figures = figures_of(*backend, config, kv);
    figures.free_bytes =
        static_cast<size_t>(static_cast<double>(rank_figures.free_bytes) * options.memory_part);
    if (options.memory > 0) figures.free_bytes = std::min(figures.free_bytes, options.memory);
    EngineOptions wanted = options;
    const auto plan_wanted = [&] {
      return plan_memory_of(file.name(), share, wanted, rank_figures.weight_bytes, max_logits,
                            figures);
    };
    plan = plan_wanted();
    if (plan.slots < least_slots) {
      wanted.slots = least_slots;
      plan = plan_wanted();
    }
    return runner_limits(plan);
  };
  place(ranks->device().device, ranks->device().threads,
        bytes_to_load(files, config, ranks->place()), options.load_progress,
        [&](const auto& progress) {
          if (options.wrap_backend) backend = options.wrap_backend(std::move(backend));
          runner = std::make_unique<Runner>(
              ranks->load(files, config, *backend, options.exact_sums, choose_limits, progress));
        });
  proposed_tokens = plan.proposed_tokens;
  info = {.device = ranks->describe(*backend),
          .context = plan.context,
          .max_context = config.max_context,
          .context_end = why_context_ends(config),
          .slots = plan.slots,
          .kv_tokens = plan.kv_tokens,
          .chunk = plan.chunk,
          .vocab = config.vocab,
          .load_seconds = load_seconds,
          .weight_bytes = bytes_to_load(files, config),
          .kv_bytes = runner->kv_bytes(),
          .kv_layers = static_cast<int64_t>(kv_layers(config).size()),
          .kv_in_eight = kv == KvFormat::plain ? 0 : n_layers_of_format(config, runner->kv_type()),
          .sampling = default_sampling(file)};
  for (const AdapterOption& adapter : options.adapters) info.adapters.push_back(adapter.name);
  if (!answers) return;
  info.source_context = plan.source;
  info.sampling.no_repeat_ngram = answers->no_repeat_ngram;
  info.search = answers->search;
  info.max_tokens = answers->max_tokens;
  info.min_tokens = answers->min_tokens;
}

}  // namespace faststream
