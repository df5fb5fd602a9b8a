// BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and what is built like it (XLM-RoBERTa,
// arXiv:1911.02116; CamemBERT, arXiv:1911.03894).
#include "convert/families/family.h"

namespace faststream {
namespace {

constexpr PlainShape kBert = {.n_layers = 12,
                              .hidden = 768,
                              .n_heads = 12,
                              .ffn_hidden = 3072,
                              .vocab = 30522,
                              .max_context = 512};

// `base` is the name of the encoder in a model with a head.
FamilyModel bert_in(const JsonView& config, const std::string& base, double eps) {
  refuse_if(config, "is_decoder", "a mask of later tokens");
  if (config.get<std::string>("position_embedding_type", "absolute") != "absolute") {
    config.member("position_embedding_type").fail("is not \"absolute\", which alone is supported");
  }
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
  if (!is_classifier(config)) {  // heads of other tasks
    leave_out(m,
              {"pooler.dense", "cls.predictions.transform.dense",
               "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
               "cls.seq_relationship", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"});
    m.unused.insert(m.unused.end(), {"cls.predictions.bias", "lm_head.bias"});
  }
  return model;
}

DenseConfig head_of(const ModelConfig& model) {
  return {.size = model.hidden, .bias = true, .activation = Activation::tanh};
}

}  // namespace

FamilyModel describe_bert(const FamilySource& source) {
  FamilyModel model = bert_in(source.config, "bert", 1e-12);
  if (is_classifier(source.config)) {
    score_labels(model, source.config, {.mode = Pooling::first, .dense = {head_of(model.config)}},
                 {{.product = "bert.pooler.dense"}}, "classifier");
  }
  return model;
}

FamilyModel describe_roberta(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = bert_in(config, "roberta", 1e-12);
  // Positions begin after the padding token's id.
  EmbeddingConfig& embedding = model.config.embedding;
  embedding.offset = config.get<int64_t>("pad_token_id", 1) + 1;
  model.config.max_context = embedding.positions - embedding.offset;
  if (is_classifier(config)) {
    score_labels(model, config, {.mode = Pooling::first, .dense = {head_of(model.config)}},
                 {{.product = "classifier.dense"}}, "classifier.out_proj");
  }
  return model;
}

}  // namespace faststream
