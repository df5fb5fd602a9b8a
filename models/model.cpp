#include "models/model.h"

#include "models/llama.h"
#include "support/error.h"

namespace faststream {
namespace {

// Every known architecture, by the name in the model file.
void require_known(const ModelConfig& config) {
  if (config.architecture != "llama") {
    throw Error("the architecture \"" + config.architecture + "\" is unknown");
  }
}

}  // namespace

size_t activation_bytes(const ModelConfig& config, DType activations, const BatchLimits& limits) {
  require_known(config);
  return llama::activation_bytes(config, activations, limits);
}

StepBounds step_bounds(const ModelConfig& config, const BatchLimits& limits, int64_t sequences,
                       int64_t context) {
  require_known(config);
  return {.tokens = limits.max_tokens,
          .sequences = sequences,
          .logits = limits.max_logits,
          .context = context,
          .vocab = config.vocab,
          .n_heads = config.n_heads,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .weights = config.weights,
          .products = llama::products(config, limits)};
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits) {
  require_known(config);
  return llama::make_model(config, weights, backend, limits);
}

}  // namespace faststream
