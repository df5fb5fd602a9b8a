// EXAONE 4 (arXiv:2507.11407) and K-EXAONE.
#include <utility>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

// What both share: norms of each head, and a rotation in windowed layers alone, if there are any.
FamilyModel exaone_in(const JsonView& config) {
  constexpr PlainShape kOtherwise = {.n_kv_heads = 32, .max_context = 2048, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  constexpr int64_t kWindow = 4096;
  const int64_t window = window_in(config, kWindow);
  set_windows(model.config, config, window, [&](int64_t n) {
    return (n + 1) % count_in(config, "sliding_window_pattern", kMaxLayers, 4) != 0;
  });
  if (window == 0) return model;
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
  return model;
}

}  // namespace

FamilyModel describe_exaone4(const FamilySource& source) {
  FamilyModel model = exaone_in(source.config);
  for (LayerConfig& layer : model.config.layer_kinds) {
    for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
      norms->after = std::exchange(norms->before, {});
    }
  }
  model.modules.attention_after_norm = "post_attention_layernorm";
  model.modules.ffn_after_norm = "post_feedforward_layernorm";
  return model;
}

FamilyModel describe_exaone_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = exaone_in(config);
  const auto dense = number_of(config, "first_k_dense_replace", kMaxLayers, 1);
  constexpr double kScale = 2.5;
  use_routed_experts(model.config, config, sparse_in(config, model.config.n_layers(), dense),
                     {.scale = kScale});
  name_routed_experts(model.modules);
  model.modules.correction = "mlp.e_score_correction_bias";
  add_predictors_beside(source.weights, model.modules, model.config, model.predictors);
  return model;
}

}  // namespace faststream::convert
