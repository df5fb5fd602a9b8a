// ALBERT (arXiv:1909.11942): BERT whose embeddings are narrow, and whose layers are one, or a few,
// again and again. A model file has each layer's weights, be they the same.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_albert(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kXxlarge = {.n_layers = 12,
                                   .hidden = 4096,
                                   .n_heads = 64,
                                   .ffn_hidden = 16384,
                                   .vocab = 30000,
                                   .max_context = 512};
  constexpr int64_t kEmbedding = 128;
  refuse_other(config, "inner_group_num", 1);
  const PlainShape shape = shape_in(config, kXxlarge);
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", 1e-12);
  FamilyModel model{
      post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu_new"))};
  model.config.embedding.size = count_in(config, "embedding_size", kMaxSize, kEmbedding);
  model.config.embedding.positions = shape.max_context;
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 2);

  Modules& m = model.modules;
  m.base = "albert.";
  m.embedding = "embeddings.word_embeddings";
  m.positions = "embeddings.position_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.embedding_norm = "embeddings.LayerNorm";
  m.embedding_projection = "encoder.embedding_hidden_mapping_in";
  m.layers = "encoder.albert_layer_groups.";
  const int64_t groups = count_in(config, "num_hidden_groups", shape.n_layers, 1);
  for (int64_t n = 0; n < shape.n_layers; ++n) {
    m.mixer_layers.push_back(n * groups / shape.n_layers);
  }
  m.ffn_layers = m.mixer_layers;
  const std::string layer = "albert_layers.0.";
  const std::string attention = layer + "attention.";
  m.qkv = {attention + "query", attention + "key", attention + "value"};
  m.attention_out = attention + "dense";
  m.attention_stream_norm = attention + "LayerNorm";
  m.gate_up = {layer + "ffn"};
  m.down = layer + "ffn_output";
  m.ffn_stream_norm = layer + "full_layer_layer_norm";
  m.unused = {".position_ids"};
  if (is_classifier(config)) {
    score_labels(model, config, {.dense = "albert.pooler", .scores = "classifier"});
    return model;
  }
  leave_out(m, {"pooler", "predictions.dense", "predictions.LayerNorm", "predictions.decoder",
                "sop_classifier.classifier"});
  m.unused.emplace_back("predictions.bias");
  return model;
}

}  // namespace faststream::convert
