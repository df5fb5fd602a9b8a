#include "convert/families/routed_experts.h"

#include "support/printable.h"

namespace faststream::convert {

void use_routed_experts(ModelConfig& model, const JsonView& config, const std::vector<bool>& sparse,
                        const RoutedDefaults& defaults) {
  const int64_t size = count_in(config, "moe_intermediate_size");
  const int64_t count =
      count_in(config, key_in(config, {"num_experts", "n_routed_experts"}), kMaxExperts);
  const std::string_view of_shared = key_in(config, {"num_shared_experts", "n_shared_experts"});
  const auto shared = number_of(config, of_shared, kMaxExperts, defaults.shared);
  RouterConfig router{.score = Router::Score::sigmoid, .correction = true};
  router.groups = static_cast<int32_t>(count_in(
      config, key_in(config, {"num_expert_group", "n_group"}), kMaxExperts, defaults.groups));
  router.groups_used =
      static_cast<int32_t>(count_in(config, "topk_group", kMaxExperts, defaults.groups_used));
  router.normalized =
      config.get(key_in(config, {"moe_renormalize", "norm_topk_prob"}), defaults.normalized);
  router.scale = number_in(config, "routed_scaling_factor", defaults.scale);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, defaults.used);
    router.used = experts.router.used;
    experts.router = router;
    experts.each.size = size;
    experts.shared = experts.each;
    experts.shared.size = shared * size;
  });
}

std::vector<bool> sparse_in(const JsonView& config, int64_t n_layers, int64_t dense) {
  std::vector<bool> sparse;
  const auto list = config.find("mlp_layer_types");
  if (!list) {
    for (int64_t n = 0; n < n_layers; ++n) sparse.push_back(n >= dense);
    return sparse;
  }
  for (const JsonView& type : list->elements()) {
    const auto name = type.as<std::string>();
    if (name != "dense" && name != "sparse") {
      type.fail("is " + in_quotes(name) + ", a type of feed-forwards that is not supported");
    }
    sparse.push_back(name == "sparse");
  }
  if (sparse.size() != static_cast<size_t>(n_layers)) {
    list->fail("has " + std::to_string(sparse.size()) + " entries for " + std::to_string(n_layers) +
               " layers");
  }
  return sparse;
}

void name_routed_experts(Modules& modules) {
  modules.shared_gate_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
  modules.shared_down = "mlp.shared_experts.down_proj";
}

}  // namespace faststream::convert
