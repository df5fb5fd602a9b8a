// Laguna of poolside: heads by layer, and softplus of gates as factors of what attention gives.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

// "gating": each head has a gate, or each of its elements.
bool gates_heads(const JsonView& config) {
  const auto gating = config.find("gating");
  if (!gating || gating->value() == true || gating->value() == "per-head") return true;
  if (gating->value() == "per-element") return false;
  gating->fail("is neither true nor \"per-head\" nor \"per-element\"");
}

// Layers of either type, with their rotation.
void set_attention(FamilyModel& model, const JsonView& config, const PlainShape& shape) {
  const bool of_heads = gates_heads(config);
  const std::vector<int64_t> n_heads = counts_of_layers(config, "num_attention_heads_per_layer",
                                                        shape.n_layers, kMaxHeads, shape.n_heads);
  set_windows(model.config, config, window_in(config, 512), [](int64_t) { return false; });
  static const nlohmann::json otherwise = {
      {"full_attention", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}},
      {"sliding_attention", {{"rope_theta", 1e4}}}};
  set_ropes_of_types(model.config, config, otherwise);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention();
    attention.n_heads = n_heads[static_cast<size_t>(n)];
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer.mixer_norms.before;
    attention.output_gate = true;
    attention.head_gate = of_heads;
    attention.gate = Activation::softplus;
    set_attention_bias(layer, config.get("attention_bias", false));
  });
}

void put_experts(FamilyModel& model, const JsonView& config) {
  refuse_if(config, "moe_apply_router_weight_on_input", "weights of what experts read");
  const int64_t count = count_in(config, "num_experts", kMaxExperts, 256);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, 512);
  const int64_t shared = count_in(config, "shared_expert_intermediate_size", kMaxSize, 512);
  const std::vector<bool> sparse = sparse_in(config, model.config.n_layers(), 1);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 8);
    experts.router.score = Router::Score::sigmoid;
    experts.router.correction = experts.router.normalized = true;
    experts.router.scale = number_in(config, "moe_routed_scaling_factor", 1);
    experts.router.soft_cap = number_in(config, "moe_router_logit_softcapping", 0);
    experts.each.size = size;
    experts.shared = experts.each;
    experts.shared.size = shared;
  });
}

}  // namespace

FamilyModel describe_laguna(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 40,
                                     .hidden = 2048,
                                     .n_heads = 48,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 8192,
                                     .vocab = 100352,
                                     .max_context = 131072,
                                     .norm_eps = 1e-6F};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder(shape)};
  model.config.layer_kinds[0].ffn.activation = activation_in(config, "hidden_act", "silu");
  model.config.output.tied = config.get("tie_word_embeddings", false);
  set_attention(model, config, shape);
  put_experts(model, config);
  Modules& m = model.modules;
  m.output_gate = "self_attn.g_proj";
  // As released, or as Transformers calls them.
  if (has_modules(source.weights, "mlp.shared_experts.")) name_routed_experts(m);
  if (has_modules(source.weights, "mlp.experts.e_score_correction_bias")) {
    m.correction = "mlp.experts.e_score_correction_bias";
  }
  return model;
}

}  // namespace faststream::convert
