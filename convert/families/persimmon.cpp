// Persimmon of Adept.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_persimmon(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 36,
                                     .hidden = 4096,
                                     .n_heads = 64,
                                     .ffn_hidden = 16384,
                                     .vocab = 262144,
                                     .max_context = 16384};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise), {.rotated_share = 0.5})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation_in(config, "hidden_act", "relu2"), true);
  if (config.get("qk_layernorm", true)) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = model.config.output.norm;
  }

  Modules& m = model.modules;
  m.qkv = {"self_attn.query_key_value"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.q_norm = "self_attn.q_layernorm";
  m.k_norm = "self_attn.k_layernorm";
  m.attention_out = "self_attn.dense";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "final_layernorm";
  return model;
}

}  // namespace faststream::convert
