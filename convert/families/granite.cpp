// Granite 3 of IBM, dense and with experts: Llama with multipliers, but for that of scores and of
// the embedding folded into weights.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_granite(const FamilySource& source) {
  FamilyModel model = describe_llama(source);
  const JsonView& config = source.config;
  model.config.embedding.multiplier = number_in(config, "embedding_multiplier", 1);
  model.config.layer_kinds[0].attention().scale = number_in(config, "attention_multiplier", 1);
  model.modules.residual_scale = number_in(config, "residual_multiplier", 1);
  const float scaling = number_in(config, "logits_scaling", 1);
  if (scaling == 0) config.member("logits_scaling").fail("is 0, by which logits are divided");
  model.modules.output_norm_scale = 1 / scaling;
  return model;
}

FamilyModel describe_granitemoe(const FamilySource& source) {
  FamilyModel model = describe_granite(source);
  const JsonView& config = source.config;
  LayerConfig& layer = model.config.layer_kinds[0];
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 8);
  use_experts(layer, config, count, 2).router.normalized = true;  // softmax over the chosen ones
  model.modules.router = "block_sparse_moe.router.layer";
  model.modules.experts_gate_up = {"block_sparse_moe.input_linear"};
  model.modules.experts_down = "block_sparse_moe.output_linear";
  return model;
}

FamilyModel describe_granitemoeshared(const FamilySource& source) {
  FamilyModel model = describe_granitemoe(source);
  ExpertsConfig& experts = *model.config.layer_kinds[0].experts;
  experts.shared = experts.each;
  experts.shared.size = number_of(source.config, "shared_intermediate_size", kMaxSize, 0);
  model.modules.shared_gate_up = {"shared_mlp.input_linear"};
  model.modules.shared_down = "shared_mlp.output_linear";
  return model;
}

}  // namespace faststream::convert
