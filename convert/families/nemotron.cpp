// Nemotron 3 and 4 (arXiv:2402.16819), and Minitron.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_nemotron(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, {.max_context = 4096}), {.rotated_share = 0.5})};
  set_norms(model.config, layer_norm_in(config, "norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  set_plain_ffn(layer, activation_in(config, "hidden_act", "relu2"), config.get("mlp_bias", false));
  model.modules.gate_up = {"mlp.up_proj"};
  model.modules.norm_add = 1;
  return model;
}

}  // namespace faststream::convert
