// OLMo 2 (arXiv:2501.00656), OLMo 3 and OLMoE (arXiv:2409.02060).
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// What all share: queries and keys are normalized before they are cut into heads.
FamilyModel olmo_in(const JsonView& config, const PlainShape& otherwise,
                    std::string_view rope_of = "") {
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.rope_of = rope_of})};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::whole;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  return model;
}

// Norms after the branches, and none before them.
FamilyModel with_norms_after(FamilyModel model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
    norms->after = std::exchange(norms->before, {});
  }
  model.modules.attention_after_norm = "post_attention_layernorm";
  model.modules.ffn_after_norm = "post_feedforward_layernorm";
  return model;
}

}  // namespace

FamilyModel describe_olmo2(const FamilySource& source) {
  return with_norms_after(olmo_in(source.config, {.max_context = 2048, .norm_eps = 1e-5F}));
}

FamilyModel describe_olmo3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr double kTheta = 500000;
  constexpr int64_t kWindow = 4096;
  FamilyModel model = with_norms_after(olmo_in(
      config, {.max_context = 2048, .norm_eps = 1e-5F, .rope_theta = kTheta}, "full_attention"));
  set_windows(model.config, config, window_in(config, kWindow),
              [](int64_t n) { return (n + 1) % 4 != 0; });
  set_rope_of_windows(model.config, config, kTheta);  // "rope_theta" is of the others alone
  return model;
}

FamilyModel describe_olmoe(const FamilySource& source) {
  const JsonView& config = source.config;
  if (config.find("clip_qkv")) {
    config.fail(
        "\"clip_qkv\" asks for bounds of queries, keys and values, which are not supported");
  }
  FamilyModel model = olmo_in(config, {.max_context = 4096, .norm_eps = 1e-5F});
  const int64_t count =
      count_in(config, key_in(config, {"num_local_experts", "num_experts"}), kMaxExperts);
  ExpertsConfig& experts = use_experts(model.config.layer_kinds[0], config, count, 8);
  experts.router.normalized = config.get("norm_topk_prob", false);
  return model;
}

}  // namespace faststream::convert
