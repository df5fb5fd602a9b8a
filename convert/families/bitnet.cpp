// BitNet b1.58 (arXiv:2504.12285): Llama with norms of what the last products read. Which weights
// have three values says "quantization_config" (convert/quantized/bitnet.cpp).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_bitnet(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 30,
                                     .hidden = 2560,
                                     .n_heads = 20,
                                     .n_kv_heads = 5,
                                     .ffn_hidden = 6912,
                                     .vocab = 128256,
                                     .max_context = 2048,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 500000};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().sums_norm = layer.mixer_norms.before;
  layer.ffn.activation = activation_in(config, "hidden_act", "relu2");
  layer.ffn.middle_norm = layer.ffn_norms.before;
  model.modules.attention_sums_norm = "self_attn.attn_sub_norm";
  model.modules.ffn_middle_norm = "mlp.ffn_sub_norm";
  return model;
}

}  // namespace faststream::convert
