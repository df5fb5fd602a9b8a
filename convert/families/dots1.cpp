// dots.llm1 (arXiv:2506.05767).
#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_dots1(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 32, .max_context = 2048, .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  constexpr int64_t kWindow = 4096;
  constexpr int64_t kFirstWindow = 62;
  const auto first = config.get("max_window_layers", kFirstWindow);
  set_windows(model.config, config, window_in(config, kWindow),
              [&](int64_t n) { return n >= first; });
  (void)count_in(config, "num_experts_per_tok", kMaxExperts);  // without a default
  const auto dense = number_of(config, "first_k_dense_replace", kMaxLayers, 0);
  use_routed_experts(model.config, config, sparse_in(config, model.config.n_layers(), dense),
                     {.shared = 0, .normalized = false});
  name_routed_experts(model.modules);
  return model;
}

}  // namespace faststream::convert
