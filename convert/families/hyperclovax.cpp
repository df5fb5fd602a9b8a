// HyperCLOVA X: Granite with norms after the branches.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_hyperclovax(const FamilySource& source) {
  FamilyModel model = describe_llama(source);
  const JsonView& config = source.config;
  model.config.embedding.multiplier = number_in(config, "embedding_multiplier", 1);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().scale =
      number_in(config, "attention_multiplier", double{layer.attention().scale});
  if (config.get("use_post_norm", true)) {
    layer.mixer_norms.after = layer.mixer_norms.before;
    layer.ffn_norms.after = layer.ffn_norms.before;
  }
  Modules& m = model.modules;
  m.attention_after_norm = "post_norm1";
  m.ffn_after_norm = "post_norm2";
  m.residual_scale = number_in(config, "residual_multiplier", 1);
  m.output_norm_scale = number_in(config, "logits_scaling", 1);
  return model;
}

}  // namespace faststream::convert
