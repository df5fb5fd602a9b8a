#include "engine/load_weights.h"

#include <nlohmann/json.hpp>

namespace faststream {

ModelConfig read_config(const ModelFile& file) {
  return config_from_json(file.section("model"), file.name());
}

WeightLookup load_weights(const ModelFile& file, const ModelConfig& config, Backend& backend,
                          const std::function<void(size_t)>& progress) {
  for (const TensorPlan& plan : tensor_plan(config)) {
    (void)file.require(plan.name, plan.dtype, plan.shape);
  }
  backend.expect_products(config.weight_dtype, file.weights().bytes.size());
  // Where the range file.weights() is.
  const std::byte* base = backend.load_weights(file.weights(), progress);
  return [&file, base](std::string_view name) {
    return base + (file.find(name)->offset - file.weights().offset);
  };
}

}  // namespace faststream
