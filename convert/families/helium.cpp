// Helium.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_helium(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 20,
                                     .head_dim = 128,
                                     .max_context = 4096,
                                     .norm_eps = 1e-8F,
                                     .rope_theta = 100000};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("attention_bias", false);
  layer.ffn.bias = config.get("mlp_bias", false);
  model.modules.interleaved = true;
  return model;
}

}  // namespace faststream::convert
