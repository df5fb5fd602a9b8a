// AFMoE of Arcee, whose models are called Trinity.
#include <cmath>
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_afmoe(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "attention_bias", "biases beside gates of attention");
  refuse_other(config, "score_func", "sigmoid");
  refuse_other(config, "route_norm", true);
  refuse_other(config, "n_group", 1);
  constexpr PlainShape kOtherwise = {.head_dim = 128, .max_context = 16384, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  if (config.get("mup_enabled", false)) {
    model.config.embedding.multiplier = std::sqrt(static_cast<float>(model.config.hidden));
  }
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  first.attention().output_gate = true;
  first.mixer_norms.after = first.mixer_norms.before;
  first.ffn_norms.after = first.ffn_norms.before;
  constexpr int64_t kWindow = 1024;
  const int64_t every = count_in(config, "global_attn_every_n_layers", kMaxLayers, 4);
  set_windows(model.config, config, window_in(config, kWindow),
              [&](int64_t n) { return (n + 1) % every != 0; });
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
  const int64_t count = count_in(config, "num_experts", kMaxExperts, 64);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, 1408);
  const int64_t n_shared = number_of(config, "num_shared_experts", kMaxExperts, 2);
  const int64_t n_dense = number_of(config, "num_dense_layers", kMaxLayers, 1);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (n < n_dense) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 6);
    experts.router.score = Router::Score::sigmoid;
    experts.router.correction = experts.router.normalized = true;
    experts.router.scale = number_in(config, "route_scale", 1);
    experts.each.size = size;
    experts.shared = experts.each;
    experts.shared.size = n_shared * size;
  });
  Modules& m = model.modules;
  m.output_gate = "self_attn.gate_proj";
  m.attention_after_norm = "post_attention_layernorm";
  m.ffn_norm = "pre_mlp_layernorm";
  m.ffn_after_norm = "post_mlp_layernorm";
  m.router = "mlp.router.gate";
  m.correction = "mlp.expert_bias";
  name_routed_experts(m);
  return model;
}

}  // namespace faststream::convert
