// Seed-OSS.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_seed_oss(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 8, .head_dim = 128, .max_context = 524288, .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("attention_bias", true);
  layer.attention().out_bias = config.get("attention_out_bias", false);
  layer.ffn.bias = config.get("mlp_bias", false);
  return model;
}

}  // namespace faststream::convert
