// GTE (arXiv:2407.19669), as its authors' code and Snowflake's have it, and as Transformers has it:
// BERT with rotations and a gated feed-forward, of which the last product alone has a bias.
#include <cmath>
#include <string>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kGte = {.n_layers = 12,
                             .hidden = 768,
                             .n_heads = 12,
                             .ffn_hidden = 3072,
                             .vocab = 250048,
                             .max_context = 8192};

// "ntk": a larger base for texts of all lengths, and all frequencies a little lower, so that the
// lowest one falls by the factor.
std::optional<RopeConfig> ntk_rope(const JsonView& config, const RopeShape& shape) {
  const auto rule = config.find("rope_scaling");
  if (!rule || rule->value().empty() || rule->get<std::string>("type", "") != "ntk") return {};
  refuse_if_present(*rule, "mixed_b", "frequencies of another rule");
  const double factor = rule->get<double>("factor");
  if (!(factor >= 1 && std::isfinite(factor))) rule->member("factor").fail("is not 1 or above");
  const double theta = config.get("rope_theta", shape.theta);
  const auto dims = static_cast<double>(shape.head_dim);
  RopeConfig rope;
  rope.name = "rope";
  rope.frequencies = plain_frequencies(theta * factor, shape.head_dim);
  for (float& frequency : rope.frequencies) {
    frequency /= static_cast<float>(std::pow(factor, 2 / dims));
  }
  return rope;
}

void refuse_other_gte(const JsonView& config) {
  refuse_other(config, "position_embedding_type", "rope");
  refuse_other(config, "layer_norm_type", "layer_norm");
  refuse_other(config, "pack_qkv", true);
  refuse_if(config, "logn_attention_scale", "scores that depend on lengths");
  refuse_if(config, "logn_attention_clip1", "scores that depend on lengths");
}

void name_as_authors(Modules& m) {
  m.embedding_norm = "embeddings.LayerNorm";
  m.layers = "encoder.layer.";
  m.qkv = {"attention.qkv_proj"};
  m.attention_out = "attention.o_proj";
  m.attention_stream_norm = "attn_ln";
  m.gate_up = {"mlp.up_gate_proj"};
  m.up_first = true;
  m.ffn_stream_norm = "mlp_ln";
}

}  // namespace

FamilyModel describe_gte(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other_gte(config);
  const PlainShape shape = shape_in(config, kGte);
  const NormConfig norm = layer_norm_in(config, "layer_norm_eps");
  FamilyModel model{post_norm_encoder(shape, norm, activation_in(config, "hidden_act", "gelu"))};
  constexpr double kTheta = 160000;
  const RopeShape rope{
      .head_dim = shape.head_dim, .max_context = shape.max_context, .theta = kTheta};
  const auto ntk = ntk_rope(config, rope);
  model.config.ropes = {ntk ? *ntk : rope_from_hf(config, rope, "")};
  model.config.embedding.segments = number_of(config, "type_vocab_size", kMaxSize, 1);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().rope = 0;
  layer.ffn.gated = true;

  Modules& m = model.modules;
  m.base = has_modules(source.weights, "new.") ? "new." : "gte.";
  m.embedding = "embeddings.word_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.gate_up_bias = false;
  (has_modules(source.weights, "encoder.layer.") ? name_as_authors : name_as_rotated_bert)(m);
  m.unused.emplace_back(".position_ids");
  if (is_classifier(config)) {
    score_labels(model, config,
                 {.dense = base_in(source.weights, m) + "pooler.dense", .scores = "classifier"});
  } else {
    leave_out(m, {"pooler.dense", "lm_head.dense", "lm_head.norm", "lm_head.layer_norm",
                  "lm_head.decoder", "classifier"});  // the last one of tokens' weights
  }
  return model;
}

}  // namespace faststream::convert
