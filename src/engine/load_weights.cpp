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
  // Else all is loaded before a product that may never come is prepared, and has to wait for it.
  constexpr size_t kSlow = size_t{4} << 30;
  if (file.weights().bytes.size() >= kSlow) backend.expect_products(config.weight_dtype);
  // Where the range file.weights() is.
  const std::byte* base = backend.load_weights(file.weights(), progress);
  return [&file, base](std::string_view name) {
    return base + (file.find(name)->offset - file.weights().offset);
  };
}

}  // namespace faststream
