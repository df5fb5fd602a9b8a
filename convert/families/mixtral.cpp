// Mixtral (arXiv:2401.04088).
#include "convert/families/family.h"

namespace faststream {

FamilyModel describe_mixtral(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = shape_in(config);
  shape.norm_eps = number_in(config, "rms_norm_eps", 1e-5);
  shape.rope_theta = 1e6;
  FamilyModel model{plain_decoder_in(config, shape)};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention.window = window_in(config, 0);
  ExpertsConfig& experts = layer.experts.emplace();
  experts.count = count_in(config, "num_local_experts", kMaxExperts, 8);
  experts.router.used =
      static_cast<int32_t>(count_in(config, "num_experts_per_tok", kMaxExperts, 2));
  experts.router.normalized = true;
  experts.each = layer.ffn;
  layer.ffn.size = 0;
  Modules& m = model.modules;
  m.router = "block_sparse_moe.gate";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  return model;
}

}  // namespace faststream
