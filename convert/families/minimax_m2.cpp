// MiniMax-M2.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_minimax_m2(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "use_qk_norm", true);
  refuse_other(config, "qk_norm_type", "per_layer");
  refuse_other(config, "scoring_func", "sigmoid");
  refuse_other(config, "use_routing_bias", true);
  refuse_other(config, "shared_intermediate_size", 0);
  if (const auto types = config.find("attn_type_list")) {
    if (!std::ranges::all_of(types->integers<int64_t>(0, 1),
                             [](int64_t type) { return type == 1; })) {
      types->fail("names layers with linear attention, which is not supported");
    }
  }
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8,
                                     .head_dim = 128,
                                     .max_context = 196608,
                                     .norm_eps = 1e-6F,
                                     .rope_theta = 5e6};
  const PlainShape shape = shape_in(config, kOtherwise);
  const auto rotated =
      static_cast<double>(count_in(config, "rotary_dim", shape.head_dim, shape.head_dim));
  FamilyModel model{plain_decoder_in(
      config, shape, {.rotated_share = rotated / static_cast<double>(shape.head_dim)})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qk_norm = QkNorm::whole;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  constexpr int64_t kCount = 256;
  const int64_t count =
      count_in(config, key_in(config, {"num_experts", "num_local_experts"}), kMaxExperts, kCount);
  RouterConfig& router = use_experts(layer, config, count, 8).router;
  router.score = Router::Score::sigmoid;
  router.correction = router.normalized = true;
  Modules& m = model.modules;
  m.router = "block_sparse_moe.gate";
  m.correction = "block_sparse_moe.e_score_correction_bias";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  return model;
}

}  // namespace faststream::convert
