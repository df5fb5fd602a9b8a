// Jais 2.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_jais2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config, {.max_context = 8192}))};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", true));
  set_plain_ffn(layer, activation_in(config, "hidden_act", "relu2"), config.get("mlp_bias", true));
  model.modules.gate_up = {"mlp.up_proj"};
  return model;
}

}  // namespace faststream::convert
