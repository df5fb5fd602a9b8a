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

std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits) {
  require_known(config);
  return llama::make_model(config, weights, backend, limits);
}

}  // namespace faststream
