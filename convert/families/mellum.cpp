// Mellum 2: Qwen 3 with experts, windows and two rotations.
#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_mellum(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 4,
                                     .head_dim = 128,
                                     .max_context = 131072,
                                     .norm_eps = 1e-6F,
                                     .rope_theta = 500000};
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, kOtherwise), {.rope_of = "full_attention"})};
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  constexpr int64_t kWindow = 1024;
  set_windows(model.config, config, window_in(config, kWindow), [](int64_t) { return false; });
  set_rope_of_windows(model.config, config, 10000);
  constexpr int64_t kCount = 64;
  constexpr int64_t kSize = 896;
  const int64_t count =
      count_in(config, key_in(config, {"num_local_experts", "num_experts"}), kMaxExperts, kCount);
  const std::vector<bool> sparse = sparse_in(config, model.config.n_layers(), 0);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 8);
    experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, kSize);
    experts.router.normalized = config.get("norm_topk_prob", true);
  });
  model.modules.left_out = {"mtp."};
  return model;
}

}  // namespace faststream::convert
