// Phi 3 and 4, mini and not (arXiv:2404.14219).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_phi3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.max_context = 4096, .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  model.config.layer_kinds[0].attention().window = window_in(config, 0);
  model.modules.qkv = {"self_attn.qkv_proj"};
  model.modules.gate_up = {"mlp.gate_up_proj"};
  return model;
}

// Phi 4 multimodal: the text model.
FamilyModel describe_phi4_multimodal(const FamilySource& source) {
  FamilyModel model = describe_phi3(source);
  model.modules.left_out = {"embed_tokens_extend."};
  return model;
}

}  // namespace faststream::convert
