// GLM 4 of 9B (arXiv:2406.12793) and of 0414 in the form of Transformers, and the text models of
// GLM 4.1V and GLM OCR.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

FamilyModel glm_in(const JsonView& config, const PlainShape& otherwise, double rotated_share,
                   bool qkv_bias) {
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, otherwise), {.rotated_share = rotated_share})};
  model.config.layer_kinds[0].attention().qkv_bias = qkv_bias;
  model.modules.gate_up = {"mlp.gate_up_proj"};
  model.modules.interleaved = true;
  return model;
}

FamilyModel with_post_norms(FamilyModel model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms.after = layer.mixer_norms.before;
  layer.ffn_norms.after = layer.ffn_norms.before;
  model.modules.attention_after_norm = "post_self_attn_layernorm";
  model.modules.ffn_after_norm = "post_mlp_layernorm";
  return model;
}

}  // namespace

FamilyModel describe_glm(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 2, .head_dim = 128, .max_context = 131072, .norm_eps = 1.5625e-7F};
  return glm_in(source.config, kOtherwise, 0.5, source.config.get("attention_bias", true));
}

FamilyModel describe_glm4(const FamilySource& source) {
  return with_post_norms(describe_glm(source));
}

FamilyModel describe_glm4v(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {.n_layers = 40,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 2,
                                     .ffn_hidden = 13696,
                                     .vocab = 151552,
                                     .max_context = 32768,
                                     .norm_eps = 1e-5F};
  return with_post_norms(glm_in(source.config, kOtherwise, 1, true));
}

FamilyModel describe_glm_ocr(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {.n_layers = 16,
                                     .hidden = 1024,
                                     .n_heads = 16,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 4096,
                                     .vocab = 59392,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F};
  return with_post_norms(glm_in(source.config, kOtherwise, 1, false));
}

}  // namespace faststream::convert
