// Llama 1 to 3 (arXiv:2302.13971, arXiv:2407.21783) and the many that share its code.
#include "convert/families/family.h"

namespace faststream {

FamilyModel describe_llama(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  LayerConfig& layer = model.config.layer_kinds[0];
  const bool attention_bias = config.get("attention_bias", false);
  layer.attention.qkv_bias = attention_bias;
  layer.attention.out_bias = attention_bias;
  layer.ffn.bias = config.get("mlp_bias", false);
  return model;
}

}  // namespace faststream
