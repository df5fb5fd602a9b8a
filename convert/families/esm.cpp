// Encoders of proteins. ESM-1b (doi:10.1073/pnas.2016239118) and ESM-2
// (doi:10.1126/science.ade2574): BERT's layers with norms before each branch. ESM Cambrian: Llama's
// layers, whose tokens all see each other, with norms of queries and keys.
#include <cmath>

#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kEsm = {
    .n_layers = 12, .hidden = 768, .n_heads = 12, .ffn_hidden = 3072, .max_context = 1026};

constexpr PlainShape kEsmc = {.n_layers = 80,
                              .hidden = 2560,
                              .n_heads = 40,
                              .ffn_hidden = 6912,
                              .vocab = 64,
                              .max_context = 2048};

// Of embeddings of texts without masked tokens, where those of training made up for such.
constexpr auto kUnmasked = static_cast<float>(1 - 0.15 * 0.8);

void set_positions(const JsonView& config, const PlainShape& shape, FamilyModel& model) {
  constexpr const char* kKey = "position_embedding_type";
  const auto type = config.get<std::string>(kKey, "absolute");
  if (type == "rotary") {
    RopeConfig& rope = model.config.ropes.emplace_back();
    rope.name = "rope";
    rope.frequencies = plain_frequencies(config.get("rope_theta", 10000.0), shape.head_dim);
    model.config.layer_kinds[0].attention().rope = 0;
    model.modules.unused.emplace_back("embeddings.position_embeddings.weight");
  } else if (type == "absolute") {
    model.config.embedding.positions = shape.max_context;
    begin_after_padding(model.config, config);
    model.modules.positions = "embeddings.position_embeddings";
  } else {
    config.member(kKey).fail("is " + in_quotes(type) + "; rotary and absolute alone are supported");
  }
}

}  // namespace

FamilyModel describe_esm(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "is_folding_model", "the structure of proteins");
  refuse_if(config, "is_decoder", "a mask of later tokens");
  NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  norm.eps = number_in(config, "layer_norm_eps", 1e-12);
  const PlainShape shape = shape_in(config, kEsm);
  FamilyModel model{post_norm_encoder(shape, norm, Activation::gelu)};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms = layer.ffn_norms = {};
  set_norms(model.config, norm);
  model.config.embedding.norm = {};

  Modules& m = model.modules;
  m.base = "esm.";
  m.embedding = "embeddings.word_embeddings";
  m.layers = "encoder.layer.";
  m.attention_norm = "attention.LayerNorm";
  m.qkv = {"attention.self.query", "attention.self.key", "attention.self.value"};
  m.attention_out = "attention.output.dense";
  m.ffn_norm = "LayerNorm";
  m.gate_up = {"intermediate.dense"};
  m.down = "output.dense";
  m.output_norm = "encoder.emb_layer_norm_after";
  m.unused = {".position_ids", "rotary_embeddings.inv_freq"};
  leave_out(m, {"contact_head.regression"});
  if (config.get("emb_layer_norm_before", false)) {
    model.config.embedding.norm = norm;
    m.embedding_norm = "embeddings.layer_norm";
  }
  if (config.get("token_dropout", false)) model.config.embedding.multiplier = kUnmasked;
  set_positions(config, shape, model);
  use_heads_of_roberta(model, config);
  return model;
}

FamilyModel describe_esmc(const FamilySource& source) {
  const JsonView& config = source.config;
  const PlainShape shape = shape_in(config, kEsmc);
  FamilyModel model{plain_decoder_in(config, shape)};
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-5F, .bias = true});
  model.config.output.norm.bias = false;
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().bidirectional = true;
  layer.attention().qk_norm = QkNorm::whole;
  layer.attention().qk_norm_as = model.config.output.norm;
  layer.ffn.bias = config.get("mlp_bias", false);
  remove_output(model);
  model.modules.base = "esmc.";
  constexpr double kLayersOfPlain = 36;
  model.modules.residual_scale =
      static_cast<float>(std::sqrt(kLayersOfPlain / static_cast<double>(shape.n_layers)));
  use_heads_of_roberta(model, config);
  return model;
}

}  // namespace faststream::convert
