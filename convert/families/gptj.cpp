// GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward side by side on one norm.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_gptj(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = gpt2_shape_in(config);
  shape.max_context = count_in(config, "n_positions", kMaxContext, 2048);
  const bool is_null = config.has("rotary_dim") && !config.find("rotary_dim");  // all of a head
  const int64_t rotated =
      is_null ? shape.head_dim : count_in(config, "rotary_dim", shape.head_dim, 64);
  FamilyModel model{plain_decoder(shape)};
  model.config.ropes[0].frequencies = plain_frequencies(shape.rope_theta, rotated);
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon"));
  model.config.output.tied = config.get("tie_word_embeddings", false);
  model.config.output.bias = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  set_plain_ffn(layer, activation_in(config, "activation_function", "gelu_new"), true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.layers = "h.";
  m.attention_norm = "ln_1";
  m.qkv = {"attn.q_proj", "attn.k_proj", "attn.v_proj"};
  m.attention_out = "attn.out_proj";
  m.gate_up = {"mlp.fc_in"};
  m.down = "mlp.fc_out";
  m.output_norm = "ln_f";
  m.interleaved = true;
  m.unused = {".attn.bias", ".attn.masked_bias"};
  return model;
}

}  // namespace faststream::convert
