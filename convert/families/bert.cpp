// BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and what is built like it (XLM-RoBERTa,
// arXiv:1911.02116; CamemBERT, arXiv:1911.03894; JinaBERT, arXiv:2310.19923; ELECTRA,
// arXiv:2003.10555; LUKE, arXiv:2010.01057; data2vec, arXiv:2202.03555; ERNIE, arXiv:2107.12904;
// RemBERT, arXiv:2010.12821; DPR, arXiv:2004.04906), also with norms before each branch (Megatron's
// BERT, arXiv:1909.08053; XLM-RoBERTa XL, arXiv:2105.00572; RoBERTa of arXiv:2202.08005).
#include "convert/families/bert.h"

#include <memory>
#include <string>

#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kXlmRobertaXl = {.n_layers = 36,
                                      .hidden = 2560,
                                      .n_heads = 32,
                                      .ffn_hidden = 10240,
                                      .vocab = 250880,
                                      .max_context = 514};

// Throws Error unless config.json has `value` at `key`, where `by_default` is what its class has.
void require(const JsonView& config, std::string_view key, const std::string& value,
             const std::string& by_default) {
  if (config.get<std::string>(key, by_default) == value) return;
  config.member(key).fail("is not " + in_quotes(value) + ", which alone is supported");
}

// `base` is the name of the encoder in a model with a head.
FamilyModel bert_in(const JsonView& config, const std::string& base, double eps,
                    const PlainShape& otherwise = kBert) {
  refuse_if(config, "is_decoder", "a mask of later tokens");
  return bert_stack(config, base, eps, otherwise);
}

// BERT's: a classifier scores labels; what predicts masked tokens and next sentences is left out.
void use_heads(FamilyModel& model, const JsonView& config) {
  if (is_classifier(config)) {
    const std::string pooler = model.modules.base + "pooler.dense";
    return score_labels(model, config, {.dense = pooler, .scores = "classifier"});
  }
  leave_out(model.modules, {"pooler.dense", "cls.predictions.transform.dense",
                            "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                            "cls.seq_relationship"});
  model.modules.unused.emplace_back("cls.predictions.bias");
}

FamilyModel roberta_in(const FamilySource& source, const std::string& base, double eps = 1e-12,
                       const PlainShape& otherwise = kBert) {
  const JsonView& config = source.config;
  require(config, "position_embedding_type", "absolute", "absolute");
  FamilyModel model = bert_in(config, base, eps, otherwise);
  begin_after_padding(model.config, config);
  if (has_modules(source.weights, "emb_ln.")) name_as_flash_bert(model.modules);
  use_heads_of_roberta(model, config);
  return model;
}

/// Modules of the norms of an encoder that has them before each branch, and a last one.
struct NormsBefore {
  std::string of_attention;
  std::string of_ffn;
  std::string of_output;
};

void use_norms_before(FamilyModel& model, const NormsBefore& norms) {
  const NormConfig norm = model.config.embedding.norm;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms = layer.ffn_norms = {};
  set_norms(model.config, norm);
  model.modules.attention_norm = norms.of_attention;
  model.modules.ffn_norm = norms.of_ffn;
  model.modules.output_norm = norms.of_output;
}

}  // namespace

FamilyModel bert_stack(const JsonView& config, const std::string& base, double eps,
                       const PlainShape& otherwise) {
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", eps);
  const PlainShape shape = shape_in(config, otherwise);
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  model.config.embedding.positions = shape.max_context;
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 2);

  model.modules.base = base + ".";
  name_as_bert(model.modules);
  return model;
}

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
  // Jina Embeddings v3 as its authors' code has it.
  const auto positions = source.config.get<std::string>("position_embedding_type", "absolute");
  if (positions == "rotary") return describe_jina_embeddings_v3(source);
  return roberta_in(source, "roberta");
}

// A text's vector is its first token's state, or a product of that.
FamilyModel describe_dpr(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "position_embedding_type", "absolute");
  const bool of_questions = has_modules(source.weights, "question_encoder.");
  const std::string base = of_questions ? "question_encoder." : "ctx_encoder.";
  FamilyModel model = bert_in(config, base + "bert_model", 1e-12);
  leave_out(model.modules, {"pooler.dense"});
  PoolingConfig& pooling = model.config.pooling.emplace();
  pooling.mode = Pooling::first;
  const int64_t size = number_of(config, "projection_dim", kMaxSize, 0);
  if (size == 0) return model;
  pooling.dense = {{.size = size, .bias = true}};
  model.modules.dense = {{.product = base + "encode_proj"}};
  return model;
}

FamilyModel describe_data2vec_text(const FamilySource& source) {
  return roberta_in(source, "data2vec_text");
}

// Of words alone: what it makes of entities beside them is left out.
FamilyModel describe_luke(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = bert_in(config, "luke", 1e-12);
  begin_after_padding(model.config, config);
  use_heads(model, config);
  leave_out(model.modules,
            {"attention.self.w2e_query", "attention.self.e2w_query", "attention.self.e2e_query",
             "entity_embeddings.entity_embeddings", "entity_embeddings.entity_embedding_dense",
             "entity_embeddings.position_embeddings", "entity_embeddings.token_type_embeddings",
             "entity_embeddings.LayerNorm", "entity_predictions", "entity_predictions.decoder",
             "entity_predictions.transform.dense", "entity_predictions.transform.LayerNorm",
             "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"});
  model.modules.unused.emplace_back("lm_head.bias");
  return model;
}

FamilyModel describe_electra(const FamilySource& source) {
  const JsonView& config = source.config;
  require(config, "position_embedding_type", "absolute", "absolute");
  FamilyModel model = bert_in(config, "electra", 1e-12);
  constexpr int64_t kEmbedding = 128;
  const int64_t size = count_in(config, "embedding_size", kMaxSize, kEmbedding);
  if (size != model.config.hidden) model.config.embedding.size = size;
  model.modules.embedding_projection = "embeddings_project";
  if (is_classifier(config)) {
    score_labels(model, config,
                 {.dense = "classifier.dense",
                  .scores = "classifier.out_proj",
                  .activation = Activation::gelu});
  } else {
    leave_out(model.modules, {"generator_predictions.dense", "generator_predictions.LayerNorm",
                              "generator_lm_head", "discriminator_predictions.dense",
                              "discriminator_predictions.dense_prediction"});
  }
  return model;
}

FamilyModel describe_megatron_bert(const FamilySource& source) {
  FamilyModel model = bert_in(source.config, "bert", 1e-12);
  use_norms_before(model,
                   {.of_attention = "attention.ln", .of_ffn = "ln", .of_output = "encoder.ln"});
  model.config.embedding.norm = {};
  use_heads(model, source.config);
  return model;
}

FamilyModel describe_xlm_roberta_xl(const FamilySource& source) {
  FamilyModel model = roberta_in(source, "roberta", 1e-5, kXlmRobertaXl);
  use_norms_before(model, {.of_attention = "attention.self_attn_layer_norm",
                           .of_ffn = "LayerNorm",
                           .of_output = "encoder.LayerNorm"});
  model.config.embedding.norm = {};
  return model;
}

FamilyModel describe_roberta_prelayernorm(const FamilySource& source) {
  FamilyModel model = roberta_in(source, "roberta_prelayernorm");
  use_norms_before(model, {.of_attention = "attention.LayerNorm",
                           .of_ffn = "intermediate.LayerNorm",
                           .of_output = "LayerNorm"});
  return model;
}

// Its embeddings are narrow, as ALBERT's.
FamilyModel describe_rembert(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kRembert = {.n_layers = 32,
                                   .hidden = 1152,
                                   .n_heads = 18,
                                   .ffn_hidden = 4608,
                                   .vocab = 250300,
                                   .max_context = 512};
  constexpr int64_t kEmbedding = 256;
  FamilyModel model = bert_in(config, "rembert", 1e-12, kRembert);
  model.config.embedding.size = count_in(config, "input_embedding_size", kMaxSize, kEmbedding);
  model.modules.embedding_projection = "encoder.embedding_hidden_mapping_in";
  use_heads(model, config);
  leave_out(model.modules, {"cls.predictions.dense", "cls.predictions.LayerNorm"});
  return model;
}

// Each text is one of the first task's, whose embedding is added to those of segments.
FamilyModel describe_ernie(const FamilySource& source) {
  const JsonView& config = source.config;
  require(config, "position_embedding_type", "absolute", "absolute");
  FamilyModel model = bert_in(config, "ernie", 1e-12);
  use_heads(model, config);
  if (!config.get("use_task_id", false)) return model;
  const int64_t tasks = count_in(config, "task_type_vocab_size", kMaxSize, 3);
  model.finish = [tasks, modules = model.modules](const ModelConfig& described,
                                                  const Checkpoint& weights, TensorParts& parts) {
    TensorPart first{.source = base_in(weights, modules) + "embeddings.task_type_embeddings.weight",
                     .shape = {tasks, described.hidden}};
    first.n_rows = described.embedding.segments;
    first.row_step = 0;
    parts[{TensorKind::segments}].front().plus = std::make_shared<const TensorPart>(first);
  };
  return model;
}

}  // namespace faststream::convert
