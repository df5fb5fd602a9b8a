// Hunyuan, dense and with experts (arXiv:2411.02265), and Hunyuan V3.
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

FamilyModel hunyuan_in(const JsonView& config) {
  refuse_if(config, "use_cla", "keys and values that layers share");
  refuse_other(config, "use_qk_norm", true);
  constexpr PlainShape kOtherwise = {.max_context = 2048, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  layer.attention().qk_norm_after_rope = true;
  model.modules.q_norm = "self_attn.query_layernorm";
  model.modules.k_norm = "self_attn.key_layernorm";
  return model;
}

}  // namespace

FamilyModel describe_hunyuan_v1_dense(const FamilySource& source) {
  return hunyuan_in(source.config);
}

// The text model of Hunyuan OCR, whose releases have it at the top of config.json.
FamilyModel describe_hunyuan_vl(const FamilySource& source) {
  FamilyModel model = hunyuan_in(source.config);
  model.config.output.tied = source.config.get("tie_word_embeddings", true);
  model.modules.left_out = {"vit."};
  return model;
}

FamilyModel describe_hunyuan_v1_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = hunyuan_in(config);
  const int64_t n_layers = model.config.n_layers();
  const int64_t size = model.config.layer(0).ffn.size;
  const std::vector<int64_t> counts =
      counts_of_layers(config, "num_experts", n_layers, kMaxExperts, 1);
  const std::vector<int64_t> used = counts_of_layers(config, "moe_topk", n_layers, kMaxExperts, 1);
  // Of the published code, whose other forms Transformers does not know.
  for (const auto& [key, known] :
       {std::pair("moe_intermediate_size", size), std::pair("num_shared_expert", int64_t{1})}) {
    for (const int64_t value : counts_of_layers(config, key, n_layers, kMaxSize, known)) {
      if (value != known) config.member(key).fail("is not " + std::to_string(known));
    }
  }
  refuse_other(config, "moe_layer_num_skipped", 0);
  refuse_other(config, "use_mixed_mlp_moe", true);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    const auto i = static_cast<size_t>(n);
    ExpertsConfig& experts = use_experts(layer, config, counts[i], 1);
    layer.name = std::to_string(used[i]) + " of " + std::to_string(counts[i]) + " experts";
    experts.router.used = static_cast<int32_t>(used[i]);
    experts.router.normalized = true;
    experts.shared = experts.each;
  });
  Modules& m = model.modules;
  m.router = "mlp.gate.wg";
  m.shared_gate_up = {"mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"};
  m.shared_down = "mlp.shared_mlp.down_proj";
  return model;
}

FamilyModel describe_hy_v3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8,
                                     .head_dim = 128,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 11158840};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.ffn.bias = config.get("mlp_bias", false);
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  constexpr int64_t kCount = 192;
  constexpr int64_t kSize = 1536;
  constexpr double kScale = 2.826;
  const int64_t count = count_in(config, "num_experts", kMaxExperts, kCount);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, kSize);
  const auto n_shared = number_of(config, "num_shared_experts", kMaxExperts, 1);
  const int64_t n_layers = model.config.n_layers();
  const std::vector<bool> sparse = sparse_in(config, n_layers, 1);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 8);
    experts.router.score = Router::Score::sigmoid;
    experts.router.correction = experts.router.normalized = true;
    experts.router.scale = number_in(config, "router_scaling_factor", kScale);
    experts.shared = experts.each;
    experts.shared.size = n_shared * size;
    experts.each.size = size;
    experts.each.bias = false;
  });
  Modules& m = model.modules;
  m.router = "mlp.router.gate";
  m.correction = "mlp.expert_bias";
  m.shared_gate_up = {"mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"};
  m.shared_down = "mlp.shared_mlp.down_proj";
  use_predicting_layers(model, source.weights, 1);
  return model;
}

}  // namespace faststream::convert
