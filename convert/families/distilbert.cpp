// DistilBERT (arXiv:1910.01108): BERT's layers without segments.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_distilbert(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "sinusoidal_pos_embds", "positions that are computed");
  constexpr float kEps = 1e-12F;
  PlainShape shape;
  shape.n_layers = count_in(config, "n_layers", kMaxLayers, 6);
  shape.hidden = count_in(config, "dim", kMaxSize, 768);
  shape.n_heads = shape.n_kv_heads = count_in(config, "n_heads", kMaxHeads, 12);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "hidden_dim", kMaxSize, 3072);
  shape.vocab = count_in(config, "vocab_size", kMaxSize, 30522);
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext, 512);
  FamilyModel model{post_norm_encoder(shape, {.kind = NormKind::layer, .eps = kEps, .bias = true},
                                      activation_in(config, "activation", "gelu"))};
  model.config.embedding.positions = shape.max_context;

  Modules& m = model.modules;
  m.base = "distilbert.";
  m.embedding = "embeddings.word_embeddings";
  m.positions = "embeddings.position_embeddings";
  m.embedding_norm = "embeddings.LayerNorm";
  m.layers = "transformer.layer.";
  m.qkv = {"attention.q_lin", "attention.k_lin", "attention.v_lin"};
  m.attention_out = "attention.out_lin";
  m.attention_stream_norm = "sa_layer_norm";
  m.gate_up = {"ffn.lin1"};
  m.down = "ffn.lin2";
  m.ffn_stream_norm = "output_layer_norm";
  m.unused = {".position_ids"};
  if (is_classifier(config)) {
    score_labels(
        model, config,
        {.dense = "pre_classifier", .scores = "classifier", .activation = Activation::relu});
  } else {
    leave_out(m, {"vocab_transform", "vocab_layer_norm", "vocab_projector"});
  }
  return model;
}

}  // namespace faststream::convert
