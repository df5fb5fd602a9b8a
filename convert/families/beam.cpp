// Beam of Reflection AI: gates of attention with a bias for each head, and queries of layers
// without rotation that grow with their positions.
//
// Each branch's sum is a mean of the stream's variance: x = f / √i + x √((i - 1) / i), i = 2, 3,
// ... The stream here is √i times that, to which a branch adds f; norms before branches have i
// times the epsilon, and so give the same.
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

void set_attention(FamilyModel& model, const JsonView& config) {
  const int64_t n_layers = model.config.n_layers();
  LayerConfig& first = model.config.layer_kinds[0];
  AttentionConfig& attention = first.attention();
  const bool bias = config.get("attention_bias", false);
  attention.qk_norm = QkNorm::head;
  attention.qk_norm_as = first.mixer_norms.before;
  attention.output_gate = true;
  attention.qkv_bias = true;  // of gates
  attention.out_bias = bias;
  model.modules.qkv_bias = bias;
  constexpr int64_t kPattern = 6;  // every sixth layer sees all, and the last one
  set_windows(model.config, config, window_in(config, 512),
              [&](int64_t n) { return (n + 1) % kPattern != 0 && n + 1 != n_layers; });
  static const nlohmann::json otherwise = {{"sliding_attention", {{"rope_theta", 1e4}}},
                                           {"full_attention", nullptr}};
  set_ropes_of_types(model.config, config, otherwise);
  for (LayerConfig& layer : model.config.layer_kinds) {
    AttentionConfig& its = layer.attention();
    if (its.rope) continue;
    constexpr int64_t kPositions = 2048;
    its.query_power = true;
    its.query_scaling = 0.1F;
    its.query_scaling_from = kPositions;
    its.query_scaling_ahead = 1;
  }
}

// Those after branches are of what a branch gives, whose size is as it is.
void set_norms_around(ModelConfig& model) {
  const NormConfig norm = model.output.norm;
  const auto before = [&](int64_t sums) {
    return NormConfig{.kind = norm.kind, .eps = norm.eps * static_cast<float>(sums)};
  };
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    layer.mixer_norms = {.before = before(2 * n + 1), .after = norm, .stream = {}};
    layer.ffn_norms = {.before = before(2 * n + 2), .after = norm, .stream = {}};
  });
  model.output.norm = before(2 * model.n_layers() + 1);
}

}  // namespace

FamilyModel describe_beam(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 52,
                                     .hidden = 5120,
                                     .n_heads = 48,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 20480,
                                     .vocab = 151936,
                                     .max_context = 8192,
                                     .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder(shape_in(config, kOtherwise))};
  model.config.layer_kinds[0].ffn.activation = activation_in(config, "hidden_act", "silu");
  model.config.output.tied = config.get("tie_word_embeddings", false);
  constexpr double kSoftCap = 30;
  const bool is_capped =
      config.find("final_logit_softcapping") || !config.has("final_logit_softcapping");
  if (is_capped) {
    model.config.output.soft_cap = number_in(config, "final_logit_softcapping", kSoftCap);
  }
  set_attention(model, config);
  constexpr int64_t kDense = 3;
  use_routed_experts(model.config, config, sparse_in(config, model.config.n_layers(), kDense),
                     {.shared = 0, .scale = 2.5, .groups = 8, .groups_used = 4});
  set_norms_around(model.config);
  Modules& m = model.modules;
  m.output_gate = "self_attn.gate_proj";
  m.output_gate_bias = "self_attn.gate_bias";
  m.attention_after_norm = "post_attention_layernorm";
  m.ffn_norm = "pre_feedforward_layernorm";
  m.ffn_after_norm = "post_feedforward_layernorm";
  return model;
}

}  // namespace faststream::convert
