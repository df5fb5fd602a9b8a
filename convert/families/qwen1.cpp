// Qwen 1 (arXiv:2309.16609), as its own code has it.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_qwen1(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape;
  shape.n_layers = count_in(config, "num_hidden_layers", kMaxLayers);
  shape.hidden = count_in(config, "hidden_size");
  shape.n_heads = shape.n_kv_heads = count_in(config, "num_attention_heads", kMaxHeads);
  shape.head_dim = count_in(config, "kv_channels", kMaxHeadDim, 128);
  const int64_t both = count_in(config, "intermediate_size");  // the gate's width and up's
  if (both % 2 != 0) config.member("intermediate_size").fail("is odd");
  shape.ffn_hidden = both / 2;
  shape.vocab = count_in(config, "vocab_size");
  shape.norm_eps = number_in(config, "layer_norm_epsilon", 1e-6);
  shape.rope_theta = config.get("rotary_emb_base", 10000.0);
  // Longer texts would be rotated, and their queries scaled, by rules of their own.
  const bool ends = config.get("use_dynamic_ntk", true) || config.get("use_logn_attn", true);
  shape.max_context =
      count_in(config, ends ? "seq_length" : "max_position_embeddings", kMaxContext, 8192);
  FamilyModel model{
      plain_decoder_in(config, shape, {.rotated_share = config.get("rotary_pct", 1.0)})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = true;
  layer.attention().out_bias = layer.ffn.bias = !config.get("no_bias", true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.layers = "h.";
  m.attention_norm = "ln_1";
  m.qkv = {"attn.c_attn"};
  m.attention_out = "attn.c_proj";
  m.ffn_norm = "ln_2";
  m.gate_up = {"mlp.w2", "mlp.w1"};
  m.down = "mlp.c_proj";
  m.output_norm = "ln_f";
  return model;
}

}  // namespace faststream::convert
