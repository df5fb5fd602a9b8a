// The first GPT (Radford et al. 2018, "Improving Language Understanding by Generative
// Pre-Training"): GPT-2 with norms of the stream after each branch.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_openai_gpt(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = gpt2_shape_in(config);
  shape.ffn_hidden = 4 * shape.hidden;
  shape.max_context = count_in(config, "n_positions", kMaxContext, 512);
  FamilyModel model{plain_decoder(shape)};
  model.config.embedding.positions = shape.max_context;
  remove_rotation(model.config);
  const NormConfig norm = layer_norm_in(config, "layer_norm_epsilon");
  model.config.output = {.norm = {}, .tied = config.get("tie_word_embeddings", true)};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms = layer.ffn_norms = {.before = {}, .after = {}, .stream = norm};
  set_attention_bias(layer, true);
  Activation activation = activation_in(config, "afn", "gelu");
  if (activation == Activation::gelu) activation = Activation::gelu_tanh;  // that it knows
  set_plain_ffn(layer, activation, true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "tokens_embed";
  m.positions = "positions_embed";
  m.layers = "h.";
  m.qkv = {"attn.c_attn"};
  m.attention_out = "attn.c_proj";
  m.attention_stream_norm = "ln_1";
  m.gate_up = {"mlp.c_fc"};
  m.down = "mlp.c_proj";
  m.ffn_stream_norm = "ln_2";
  m.transposed = true;
  m.unused = {".attn.bias", "position_ids"};
  return model;
}

}  // namespace faststream::convert
