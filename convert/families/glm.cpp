// GLM 4 of 9B (arXiv:2406.12793) and of 0414 in the form of Transformers.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_glm(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 2, .head_dim = 128, .max_context = 131072, .norm_eps = 1.5625e-7F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise), {.rotated_share = 0.5})};
  model.config.layer_kinds[0].attention().qkv_bias = config.get("attention_bias", true);
  model.modules.gate_up = {"mlp.gate_up_proj"};
  model.modules.interleaved = true;
  return model;
}

FamilyModel describe_glm4(const FamilySource& source) {
  FamilyModel model = describe_glm(source);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms.after = layer.mixer_norms.before;
  layer.ffn_norms.after = layer.ffn_norms.before;
  model.modules.attention_after_norm = "post_self_attn_layernorm";
  model.modules.ffn_after_norm = "post_mlp_layernorm";
  return model;
}

}  // namespace faststream::convert
