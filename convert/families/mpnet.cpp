// MPNet (arXiv:2004.09297): RoBERTa's layers, whose attention adds T5's bias of distances, one
// table for all layers.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_mpnet(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr int64_t kBuckets = 32;  // whatever config.json says, Transformers finds one of 32
  if (count_in(config, "relative_attention_num_buckets", kMaxSize, kBuckets) != kBuckets) {
    config.member("relative_attention_num_buckets").fail("is not 32, which alone is supported");
  }
  constexpr PlainShape kBase = {.n_layers = 12,
                                .hidden = 768,
                                .n_heads = 12,
                                .ffn_hidden = 3072,
                                .vocab = 30527,
                                .max_context = 512};
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", 1e-12);
  const PlainShape shape = shape_in(config, kBase);
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.layer_kinds[0].attention().relative_bias = {
      .buckets = kBuckets, .max_distance = 128, .bidirectional = true};
  EmbeddingConfig& embedding = model.config.embedding;
  embedding.positions = shape.max_context;
  embedding.offset = 2;  // after the padding token's id, which is 1 to its class
  model.config.max_context = embedding.positions - embedding.offset;

  Modules& m = model.modules;
  m.base = "mpnet.";
  m.embedding = "embeddings.word_embeddings";
  m.positions = "embeddings.position_embeddings";
  m.embedding_norm = "embeddings.LayerNorm";
  m.common_distances = "encoder.relative_attention_bias.weight";
  m.layers = "encoder.layer.";
  m.qkv = {"attention.attn.q", "attention.attn.k", "attention.attn.v"};
  m.attention_out = "attention.attn.o";
  m.attention_stream_norm = "attention.LayerNorm";
  m.gate_up = {"intermediate.dense"};
  m.down = "output.dense";
  m.ffn_stream_norm = "output.LayerNorm";
  m.unused = {".position_ids"};
  use_heads_of_roberta(model, config);
  return model;
}

}  // namespace faststream::convert
