// GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_gpt_neox(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = shape_in(config);
  shape.rope_theta = config.get("rotary_emb_base", 10000.0);
  FamilyModel model{
      plain_decoder_in(config, shape, {.rotated_share = config.get("rotary_pct", 0.25)})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = config.get("use_parallel_residual", true);
  set_attention_bias(layer, config.get("attention_bias", true));
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu"), true);

  Modules& m = model.modules;
  m.base = "gpt_neox.";
  m.embedding = "embed_in";
  m.qkv = {"attention.query_key_value"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.attention_out = "attention.dense";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "final_layer_norm";
  m.output = "embed_out";
  m.unused = {".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"};
  return model;
}

}  // namespace faststream::convert
