// Arcee's foundation models: Llama with a plain feed-forward.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_arcee(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.max_context = 4096, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  set_plain_ffn(layer, activation_in(config, "hidden_act", "relu2"), config.get("mlp_bias", false));
  model.modules.gate_up = {"mlp.up_proj"};
  return model;
}

}  // namespace faststream::convert
