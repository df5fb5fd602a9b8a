// CTRL (arXiv:1909.05858).
#include <cmath>

#include "convert/families/positions.h"

namespace faststream::convert {

FamilyModel describe_ctrl(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = gpt2_shape_in(config);
  shape.ffn_hidden = count_in(config, "dff", kMaxSize, 8192);
  shape.max_context = count_in(config, "n_positions", kMaxContext, 256);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.embedding.positions = shape.max_context;
  model.config.embedding.multiplier = std::sqrt(static_cast<float>(shape.hidden));
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-6F, .bias = true});
  model.config.output.norm = {
      .kind = NormKind::layer, .eps = number_in(config, "layer_norm_epsilon", 1e-6), .bias = true};
  model.config.output.tied = config.get("tie_word_embeddings", true);
  model.config.output.bias = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, true);
  set_plain_ffn(layer, Activation::relu, true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "w";
  m.positions = "pos_encoding";
  m.layers = "h.";
  m.attention_norm = "layernorm1";
  m.qkv = {"multi_head_attention.Wq", "multi_head_attention.Wk", "multi_head_attention.Wv"};
  m.attention_out = "multi_head_attention.dense";
  m.ffn_norm = "layernorm2";
  m.gate_up = {"ffn.0"};
  m.down = "ffn.2";
  m.output_norm = "layernorm";
  compute_positions(model, sinusoid);
  return model;
}

}  // namespace faststream::convert
