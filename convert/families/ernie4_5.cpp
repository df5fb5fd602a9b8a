// Ernie 4.5, dense and with experts.
#include <nlohmann/json.hpp>
#include <utility>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

FamilyModel ernie_in(const JsonView& config, const PlainShape& otherwise) {
  refuse_other(config, "compression_ratio", 1.0);
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.tied = true})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.ffn.bias = config.get("use_bias", false);
  set_attention_bias(layer, layer.ffn.bias);
  model.modules.interleaved = true;
  return model;
}

// The correction's tensor has a dimension more.
void set_correction(const ModelConfig& config, const Checkpoint& /*weights*/, TensorParts& parts) {
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const auto& experts = config.layer(n).experts;
    if (experts) parts[{TensorKind::router_correction, n}].front().shape = {1, experts->count};
  }
}

// One layer, whose output goes through the model's last norm.
void add_predictor_beside(FamilyModel& model, const Checkpoint& weights) {
  model.predictors.names = {"model.mtp_", "mtp_"};
  Modules modules = model.modules;
  modules.layers = "mtp_block.";
  const std::string layer = base_in(weights, modules) + modules.layers + "0.";
  if (weights.find(layer + "input_layernorm.weight") == nullptr) return;
  const bool has_experts = weights.find(layer + modules.router + ".weight") != nullptr;
  const LayerConfig* kind = find_attention_layer(model.config, has_experts);
  if (kind == nullptr) return;
  modules.embedding_norm = "mtp_emb_norm.0";
  modules.hidden_norm = "mtp_hidden_norm.0";
  modules.hidden_projection = "mtp_linear_proj.0";
  static_cast<void>(add_predictor(*kind, 0, std::move(modules), model.config, model.predictors));
}

}  // namespace

FamilyModel describe_ernie4_5(const FamilySource& source) {
  return ernie_in(source.config, {.n_kv_heads = 2,
                                  .head_dim = 128,
                                  .max_context = 131072,
                                  .norm_eps = 1e-5F,
                                  .rope_theta = 500000});
}

// The text model of PaddleOCR-VL, whose releases have it at the top of config.json.
FamilyModel describe_paddleocr_vl(const FamilySource& source) {
  FamilyModel model = describe_ernie4_5(source);
  model.modules.interleaved = false;
  model.modules.left_out = {"visual.", "mlp_AR."};
  return model;
}

FamilyModel describe_ernie4_5_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = ernie_in(
      config, {.n_kv_heads = 4, .max_context = 131072, .norm_eps = 1e-5F, .rope_theta = 500000});
  constexpr int64_t kCount = 64;
  constexpr int64_t kUsed = 6;
  constexpr int64_t kSize = 1536;
  const int64_t count = count_in(config, "moe_num_experts", kMaxExperts, kCount);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, kSize);
  const auto shared = number_of(config, "moe_num_shared_experts", kMaxExperts, 2);
  const auto first = number_of(config, "moe_layer_start_index", kMaxLayers, 1);
  auto last = config.get<int64_t>("moe_layer_end_index", -1);
  if (last == -1) last = model.config.n_layers() - 1;
  const int64_t step = count_in(config, "moe_layer_interval", kMaxLayers, 1);
  std::vector<bool> sparse;
  for (int64_t n = 0; n < model.config.n_layers(); ++n) {
    sparse.push_back((n + 1) % step == 0 && n >= first && n <= last);
  }
  if (config.find("mlp_layer_types")) sparse = sparse_in(config, model.config.n_layers(), first);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, kUsed);
    experts.router.used = static_cast<int32_t>(count_in(config, "moe_k", kMaxExperts, kUsed));
    experts.router.correction = true;
    experts.router.normalized = true;
    experts.shared = experts.each;
    experts.shared.size = shared * size;
    experts.each.size = size;
    experts.each.bias = false;
  });
  model.config.output.bias = config.get("use_bias", false);
  name_routed_experts(model.modules);
  model.modules.correction = "mlp.moe_statics.e_score_correction_bias";
  add_predictor_beside(model, source.weights);
  model.finish = set_correction;
  return model;
}

// The text model of VL, of whose experts and routers the second half is for pictures: their numbers
// come in pairs, and routers are [in, out].
FamilyModel describe_ernie4_5_vl_moe(const FamilySource& source) {
  nlohmann::json text = source.config.value();
  for (const char* key : {"moe_num_experts", "moe_intermediate_size", "moe_layer_start_index",
                          "moe_layer_end_index"}) {
    const auto pair = text.find(key);
    if (pair == text.end() || !pair->is_array() || pair->empty()) continue;
    const nlohmann::json of_text = pair->front();
    *pair = of_text;
  }
  FamilyModel model = describe_ernie4_5_moe({source.config.with(text), source.weights});
  model.config.output.bias = false;
  Modules& m = model.modules;
  m.left_out = {"vision_model.", "resampler_model.", "mlp.gate.weight_1"};
  int64_t count = 0;
  for (const LayerConfig& layer : model.config.layer_kinds) {
    if (layer.experts) count = layer.experts->count;
  }
  for (int64_t e = count; e < 2 * count; ++e) {
    m.left_out.push_back("mlp.experts." + std::to_string(e) + ".");
  }
  model.finish = [](const ModelConfig& config, const Checkpoint&, TensorParts& parts) {
    for (int64_t n = 0; n < config.n_layers(); ++n) {
      const auto& experts = config.layer(n).experts;
      if (!experts) continue;
      TensorPart& router = parts[{TensorKind::router, n}].front();
      std::swap(router.shape[0], router.shape[1]);
      router.transposed = true;
      TensorPart& correction = parts[{TensorKind::router_correction, n}].front();
      correction.shape = {2, experts->count};
      correction.n_rows = experts->count;
    }
  };
  return model;
}

}  // namespace faststream::convert
