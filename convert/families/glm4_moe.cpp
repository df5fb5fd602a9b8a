// GLM 4.5 to 4.7 with experts (arXiv:2508.06471), and the text models of 4.5V and 4.6V.
#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

FamilyModel glm_moe_in(const FamilySource& source, const PlainShape& otherwise, bool qkv_bias) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.rotated_share = 0.5})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("attention_bias", qkv_bias);
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

}  // namespace

FamilyModel describe_glm4_moe(const FamilySource& source) {
  return glm_moe_in(source, {.n_kv_heads = 8, .max_context = 131072, .norm_eps = 1e-5F}, false);
}

FamilyModel describe_glm4v_moe(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {.n_layers = 46,
                                     .hidden = 4096,
                                     .n_heads = 96,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 10944,
                                     .vocab = 151424,
                                     .max_context = 65536,
                                     .norm_eps = 1e-5F};
  return glm_moe_in(source, kOtherwise, true);
}

}  // namespace faststream::convert
