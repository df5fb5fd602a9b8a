// StarCoder 2 (arXiv:2402.19173).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_starcoder2(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 2, .max_context = 4096};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise), {.tied = true})};
  set_norms(model.config, layer_norm_in(config, "norm_epsilon"));
  LayerConfig& layer = model.config.layer_kinds[0];
  const bool bias = config.get("use_bias", true);
  set_attention_bias(layer, bias);
  layer.attention().window = window_in(config, 0);
  set_plain_ffn(layer, activation_in(config, "hidden_act", "gelu_pytorch_tanh"), bias);
  model.modules.gate_up = {"mlp.c_fc"};
  model.modules.down = "mlp.c_proj";
  return model;
}

}  // namespace faststream::convert
