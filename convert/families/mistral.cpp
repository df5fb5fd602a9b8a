// Mistral 7B and its like (arXiv:2310.06825), and Ministral 3.
#include "convert/families/family.h"

namespace faststream {

FamilyModel describe_mistral(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  constexpr int64_t kWindow = 4096;
  model.config.layer_kinds[0].attention.window = window_in(config, kWindow);
  return model;
}

FamilyModel describe_ministral3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr int64_t kHeadDim = 128;
  FamilyModel model{plain_decoder_in(config, shape_in(config, kHeadDim))};
  AttentionConfig& attention = model.config.layer_kinds[0].attention;
  attention.window = window_in(config, 0);
  const JsonView rope = config.member("rope_parameters");
  attention.query_scaling = number_in(rope, "llama_4_scaling_beta", 0);
  if (attention.query_scaling != 0) {
    attention.query_scaling_from = count_in(rope, "original_max_position_embeddings", kMaxContext);
  }
  return model;
}

}  // namespace faststream
