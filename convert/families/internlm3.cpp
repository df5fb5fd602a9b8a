// InternLM 3: Llama with biases under names of its own.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_internlm3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 2, .head_dim = 128, .max_context = 32768, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  const std::string_view of_others = key_in(config, {"bias", "mlp_bias"});
  layer.attention().qkv_bias = config.get(key_in(config, {"qkv_bias", "attention_bias"}), false);
  layer.attention().out_bias = layer.ffn.bias = config.get(of_others, false);
  return model;
}

}  // namespace faststream::convert
