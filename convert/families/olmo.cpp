// OLMo (arXiv:2402.00838), OLMo 2 (arXiv:2501.00656), OLMo 3, OLMoE (arXiv:2409.02060) and FlexOlmo
// (arXiv:2507.07024).
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

// Experts in every layer.
FamilyModel with_experts(FamilyModel model, const JsonView& config, int64_t used) {
  const int64_t count =
      count_in(config, key_in(config, {"num_local_experts", "num_experts"}), kMaxExperts);
  ExpertsConfig& experts = use_experts(model.config.layer_kinds[0], config, count, used);
  experts.router.normalized = config.get("norm_topk_prob", false);
  return model;
}

void refuse_clipping(const JsonView& config) {
  refuse_if_present(config, "clip_qkv", "bounds of queries, keys and values");
}

}  // namespace

// Its norms have no weights.
FamilyModel describe_olmo(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_clipping(config);
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-5F});
  set_attention_bias(model.config.layer_kinds[0], config.get("attention_bias", false));
  model.modules.attention_norm = model.modules.ffn_norm = model.modules.output_norm = "";
  return model;
}

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
  refuse_clipping(config);
  return with_experts(olmo_in(config, {.max_context = 4096, .norm_eps = 1e-5F}), config, 8);
}

FamilyModel describe_flex_olmo(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.max_context = 4096, .norm_eps = 1e-6F, .rope_theta = 500000};
  return with_experts(with_norms_after(olmo_in(config, kOtherwise)), config, 5);
}

}  // namespace faststream::convert
