// BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and what is built like it (XLM-RoBERTa,
// arXiv:1911.02116; CamemBERT, arXiv:1911.03894; JinaBERT, arXiv:2310.19923).
#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kBert = {.n_layers = 12,
                              .hidden = 768,
                              .n_heads = 12,
                              .ffn_hidden = 3072,
                              .vocab = 30522,
                              .max_context = 512};

// Throws Error unless config.json has `value` at `key`, where `by_default` is what its class has.
void require(const JsonView& config, std::string_view key, const std::string& value,
             const std::string& by_default) {
  if (config.get<std::string>(key, by_default) == value) return;
  config.member(key).fail("is not " + in_quotes(value) + ", which alone is supported");
}

// `base` is the name of the encoder in a model with a head.
FamilyModel bert_in(const JsonView& config, const std::string& base, double eps) {
  refuse_if(config, "is_decoder", "a mask of later tokens");
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", eps);
  const PlainShape shape = shape_in(config, kBert);
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.embedding.positions = shape.max_context;
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 2);

  Modules& m = model.modules;
  m.base = base + ".";
  m.embedding = "embeddings.word_embeddings";
  m.positions = "embeddings.position_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.embedding_norm = "embeddings.LayerNorm";
  m.layers = "encoder.layer.";
  m.qkv = {"attention.self.query", "attention.self.key", "attention.self.value"};
  m.attention_out = "attention.output.dense";
  m.attention_stream_norm = "attention.output.LayerNorm";
  m.gate_up = {"intermediate.dense"};
  m.down = "output.dense";
  m.ffn_stream_norm = "output.LayerNorm";
  m.unused = {".position_ids"};
  return model;
}

// BERT's: a classifier scores labels; what predicts masked tokens and next sentences is left out.
void use_heads(FamilyModel& model, const JsonView& config) {
  if (is_classifier(config)) {
    return score_labels(model, config, {.dense = "bert.pooler.dense", .scores = "classifier"});
  }
  leave_out(model.modules, {"pooler.dense", "cls.predictions.transform.dense",
                            "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                            "cls.seq_relationship"});
  model.modules.unused.emplace_back("cls.predictions.bias");
}

}  // namespace

FamilyModel describe_bert(const FamilySource& source) {
  require(source.config, "position_embedding_type", "absolute", "absolute");
  FamilyModel model = bert_in(source.config, "bert", 1e-12);
  use_heads(model, source.config);
  return model;
}

// With ALiBi in place of positions and a gated feed-forward, as modeling_bert.py of
// jinaai/jina-bert-implementation has them.
FamilyModel describe_jina_bert(const FamilySource& source) {
  require(source.config, "position_embedding_type", "alibi", "absolute");
  require(source.config, "feed_forward_type", "geglu", "original");
  FamilyModel model = bert_in(source.config, "bert", 1e-12);
  model.config.embedding.positions = 0;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().slopes = alibi_slopes(layer.attention().n_heads);
  layer.ffn.gated = true;
  layer.ffn.activation = Activation::gelu;

  Modules& m = model.modules;
  m.gate_up = {"mlp.gated_layers"};
  m.gate_up_bias = false;
  m.down = "mlp.wo";
  m.ffn_stream_norm = "mlp.layernorm";
  use_heads(model, source.config);
  return model;
}

FamilyModel describe_roberta(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if_present(config, "lora_adaptations", "adapters of tasks");
  require(config, "position_embedding_type", "absolute", "absolute");
  FamilyModel model = bert_in(config, "roberta", 1e-12);
  // Positions begin after the padding token's id.
  EmbeddingConfig& embedding = model.config.embedding;
  embedding.offset = config.get<int64_t>("pad_token_id", 1) + 1;
  model.config.max_context = embedding.positions - embedding.offset;
  use_heads_of_roberta(model, config);
  return model;
}

}  // namespace faststream::convert
