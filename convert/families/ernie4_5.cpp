// Ernie 4.5, dense and with experts.
#include <nlohmann/json.hpp>

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

}  // namespace

FamilyModel describe_ernie4_5(const FamilySource& source) {
  return ernie_in(source.config, {.n_kv_heads = 2,
                                  .head_dim = 128,
                                  .max_context = 131072,
                                  .norm_eps = 1e-5F,
                                  .rope_theta = 500000});
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
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if ((n + 1) % step != 0 || n < first || n > last) return;
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
  model.modules.left_out = {"model.mtp_", "mtp_"};
  model.finish = set_correction;
  return model;
}

}  // namespace faststream::convert
