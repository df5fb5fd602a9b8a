// Llama 1 to 3 (arXiv:2302.13971, arXiv:2407.21783) and the many that share its code.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_llama(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .ffn_hidden = 11008,
                                     .vocab = 32000,
                                     .max_context = 2048,
                                     .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.ffn.bias = config.get("mlp_bias", false);
  return model;
}

}  // namespace faststream::convert
