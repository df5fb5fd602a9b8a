// XGLM (arXiv:2112.10668).
#include <cmath>

#include "convert/families/positions.h"

namespace faststream::convert {

FamilyModel describe_xglm(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "add_cross_attention", "attention to an encoder");
  PlainShape shape;
  shape.n_layers = count_in(config, "num_layers", kMaxLayers, 24);
  shape.hidden = count_in(config, "d_model", kMaxSize, 1024);
  shape.n_heads = shape.n_kv_heads = count_in(config, "attention_heads", kMaxHeads, 16);
  if (shape.hidden < 4 || shape.hidden % shape.n_heads != 0) {
    config.fail("\"d_model\" is too small, or not a multiple of \"attention_heads\"");
  }
  shape.head_dim = shape.hidden / shape.n_heads;
  shape.ffn_hidden = count_in(config, "ffn_dim", kMaxSize, 4096);
  shape.vocab = count_in(config, "vocab_size", kMaxSize, 256008);
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext, 2048);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.embedding.positions = shape.max_context;
  if (config.get("scale_embedding", true)) {
    model.config.embedding.multiplier = std::sqrt(static_cast<float>(shape.hidden));
  }
  model.config.output.tied = config.get("tie_word_embeddings", true);
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-5F, .bias = true});
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation_in(config, "activation_function", "gelu"), true);

  Modules& m = model.modules;
  name_as_fairseq(m);
  m.unused.emplace_back("embed_positions.weights");
  compute_positions(model, fairseq_sinusoid);
  return model;
}

}  // namespace faststream::convert
