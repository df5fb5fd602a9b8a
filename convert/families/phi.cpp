// Phi 1, 1.5 and 2 (arXiv:2306.11644, arXiv:2309.05463).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_phi(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config), {.rotated_share = 0.5})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  model.config.output.bias = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  if (config.get("qk_layernorm", false)) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = model.config.output.norm;
  }
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu_new"), true);

  Modules& m = model.modules;
  m.q_norm = "self_attn.q_layernorm";
  m.k_norm = "self_attn.k_layernorm";
  m.attention_out = "self_attn.dense";
  m.gate_up = {"mlp.fc1"};
  m.down = "mlp.fc2";
  m.output_norm = "final_layernorm";
  return model;
}

}  // namespace faststream::convert
