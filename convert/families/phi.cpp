// Phi 1, 1.5 and 2 (arXiv:2306.11644, arXiv:2309.05463).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_phi(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "qk_layernorm", "norms of heads with biases");
  FamilyModel model{plain_decoder_in(config, shape_in(config), {.rotated_share = 0.5})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  model.config.output.bias = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu_new"), true);

  Modules& m = model.modules;
  m.attention_out = "self_attn.dense";
  m.gate_up = {"mlp.fc1"};
  m.down = "mlp.fc2";
  m.output_norm = "final_layernorm";
  return model;
}

}  // namespace faststream::convert
