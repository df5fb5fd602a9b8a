// GLM 4.5 to 4.7 with experts (arXiv:2508.06471).
#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_glm4_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8, .max_context = 131072, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise), {.rotated_share = 0.5})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("attention_bias", false);
  if (config.get("use_qk_norm", false)) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = layer.mixer_norms.before;
  }
  const int64_t n_layers = model.config.n_layers();
  const auto dense = number_of(config, "first_k_dense_replace", kMaxLayers, 1);
  use_routed_experts(model.config, config, sparse_in(config, n_layers, dense), {});
  name_routed_experts(model.modules);
  use_predicting_layers(model, source.weights,
                        number_of(config, "num_nextn_predict_layers", kMaxLayers, 1));
  return model;
}

}  // namespace faststream::convert
