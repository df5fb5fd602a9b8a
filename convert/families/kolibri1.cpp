// Kolibri 1 of Aleph Alpha: experts that are chosen by their logits and weighed by sigmoids.
#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_kolibri1(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 50,
                                     .hidden = 2560,
                                     .n_heads = 48,
                                     .n_kv_heads = 4,
                                     .head_dim = 128,
                                     .ffn_hidden = 1,  // of none
                                     .vocab = 128000,
                                     .max_context = 262144,
                                     .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  first.mixer_norms.after = first.mixer_norms.before;
  first.ffn_norms.after = first.ffn_norms.before;
  const int64_t count =
      count_in(config, key_in(config, {"num_local_experts", "num_experts"}), kMaxExperts, 384);
  ExpertsConfig& experts = use_experts(first, config, count, 6);
  experts.router.score = Router::Score::logit;
  experts.router.correction = true;
  experts.router.normalized = config.get("norm_topk_prob", false);
  experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, 512);
  experts.shared = experts.each;
  experts.shared.size = count_in(config, "shared_expert_intermediate_size", kMaxSize, 512);
  constexpr int64_t kWindow = 513;
  constexpr int64_t kPattern = 5;  // every fifth layer sees all, and rotates nothing
  const int64_t window = window_in(config, kWindow);
  set_windows(model.config, config, window, [](int64_t n) { return (n + 1) % kPattern != 0; });
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (window != 0 && layer.attention().window == 0) layer.attention().rope.reset();
  }
  Modules& m = model.modules;
  const bool is_released = has_modules(source.weights, "post_attn_norm.");
  m.attention_after_norm = is_released ? "post_attn_norm" : "post_self_attn_layernorm";
  m.ffn_after_norm = is_released ? "post_ffn_norm" : "post_mlp_layernorm";
  if (is_released) m.correction = "moe.router.expert_bias";
  name_routed_experts(m);
  return model;
}

}  // namespace faststream::convert
