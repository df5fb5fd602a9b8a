// Solar Open: experts in every layer.
#include "convert/families/routed_experts.h"

namespace faststream::convert {

FamilyModel describe_solar_open(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 1,  // of no layer
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 1e6};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  model.config.layer_kinds[0].attention().qkv_bias = config.get("attention_bias", false);
  const std::vector<bool> sparse(model.config.layers.size(), true);
  use_routed_experts(model.config, config, sparse, {});
  name_routed_experts(model.modules);
  return model;
}

}  // namespace faststream::convert
