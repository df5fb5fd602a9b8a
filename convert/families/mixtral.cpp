// Mixtral (arXiv:2401.04088).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_mixtral(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 8, .max_context = 131072, .norm_eps = 1e-5F, .rope_theta = 1e6};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().window = window_in(config, 0);
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 8);
  use_experts(layer, config, count, 2).router.normalized = true;
  Modules& m = model.modules;
  m.router = "block_sparse_moe.gate";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  return model;
}

}  // namespace faststream::convert
