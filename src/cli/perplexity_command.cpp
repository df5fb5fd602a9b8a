#include "cli/perplexity_command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/loaded_model.h"
#include "engine/perplexity.h"
#include "models/tensor_plan.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/progress.h"

namespace faststream::cli {
namespace {

void print_size(const char* label, const LoadedModel& model) {
  const TensorSizes sizes = sizes_of(tensor_plan(model.config));
  std::printf("%-21s %s, %.2f bits a weight\n", label, format_bytes(sizes.bytes).c_str(),
              sizes.bits_a_weight);
}

void print_lines(const Perplexity& result, const LoadedModel& model, const LoadedModel* reference) {
  if (result.n_tokens == 1) {
    std::printf("perplexity            %.6g (1 token)\n", result.value);
  } else {
    std::printf("perplexity            %.6g ± %.2g (%lld tokens)\n", result.value,
                result.standard_error, static_cast<long long>(result.n_tokens));
  }
  std::printf("speed                 %.1f tokens/s\n",
              static_cast<double>(result.n_tokens) / result.seconds);
  print_size("size", model);
  if (!result.divergence) return;
  const Divergence& divergence = *result.divergence;
  std::printf("reference perplexity  %.6g (ratio %.6f)\n", divergence.reference_perplexity,
              result.value / divergence.reference_perplexity);
  print_size("reference size", *reference);
  std::printf("KL divergence         mean %.3g, 99th percentile %.3g nats\n", divergence.mean_kl,
              divergence.kl_99th);
  std::printf("top token agrees      %.3f %%\n", 100 * divergence.top_token_agrees);
}

// As faststream-bench's --quality names them.
void print_json(const PerplexityOptions& options, const Perplexity& result,
                const LoadedModel& model, const LoadedModel* reference) {
  const TensorSizes sizes = sizes_of(tensor_plan(model.config));
  nlohmann::ordered_json members = {
      {"measurement", "perplexity"},
      {"model", options.model},
      {"text", options.text_file},
      {"device", model.info.device},
      {"version", FASTSTREAM_VERSION},
      {"bytes", sizes.bytes},
      {"bits_a_weight", sizes.bits_a_weight},
      {"tokens", result.n_tokens},
      {"perplexity", result.value},
      {"perplexity_standard_error", result.standard_error},
      {"scored_tokens_per_second", static_cast<double>(result.n_tokens) / result.seconds}};
  if (result.divergence) {
    const Divergence& divergence = *result.divergence;
    const TensorSizes of_reference = sizes_of(tensor_plan(reference->config));
    members.update({{"against", options.against},
                    {"against_bytes", of_reference.bytes},
                    {"against_bits_a_weight", of_reference.bits_a_weight},
                    {"against_perplexity", divergence.reference_perplexity},
                    {"perplexity_ratio", result.value / divergence.reference_perplexity},
                    {"kl_mean", divergence.mean_kl},
                    {"kl_99th", divergence.kl_99th},
                    {"top_token_agrees", divergence.top_token_agrees}});
  }
  print(members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

}  // namespace

void perplexity_command(const PerplexityOptions& options) {
  catch_interrupts();
  const std::string text = read_some_text(options.text_file, "--perplexity");
  EngineOptions engine = options.engine;
  engine.slots = 1;
  engine.speculate = "off";
  engine.check_interrupted = check_interrupted;
  LoadedModel model(options.model, engine, kPerplexityStepTokens);
  if (model.answers) {
    throw Error(model.file.name() +
                ": answers to its prompts; --perplexity is of models that continue them");
  }
  std::optional<LoadedModel> reference;
  if (!options.against.empty()) {
    engine.kv = {};         // the truth
    engine.adapters = {};   // which are for other weights
    engine.link = nullptr;  // other processes run one model at a time
    engine.stages = 1;
    reference.emplace(options.against, engine, kPerplexityStepTokens);
  }
  std::fprintf(stderr, "device: %s\n", model.info.device.c_str());
  const Perplexity result =
      measure_perplexity(model, reference ? &*reference : nullptr, text, check_interrupted);

  if (options.json) return print_json(options, result, model, reference ? &*reference : nullptr);
  print_lines(result, model, reference ? &*reference : nullptr);
}

}  // namespace faststream::cli
