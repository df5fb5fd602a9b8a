// Mistral 7B and its like (arXiv:2310.06825), Ministral and Ministral 3.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_mistral(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 32000,
                                     .max_context = 131072,
                                     .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  constexpr int64_t kWindow = 4096;
  model.config.layer_kinds[0].attention().window = window_in(config, kWindow);
  return model;
}

FamilyModel describe_ministral(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8, .max_context = 131072, .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  constexpr int64_t kWindow = 4096;
  set_windows(model.config, config, window_in(config, kWindow), [](int64_t) { return true; });
  return model;
}

FamilyModel describe_ministral3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 34,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 14336,
                                     .vocab = 131072,
                                     .max_context = 262144,
                                     .norm_eps = 1e-5F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  AttentionConfig& attention = model.config.layer_kinds[0].attention();
  attention.window = window_in(config, 0);
  const JsonView rope = config.member("rope_parameters");
  attention.query_scaling = number_in(rope, "llama_4_scaling_beta", 0);
  if (attention.query_scaling != 0) {
    attention.query_scaling_from = count_in(rope, "original_max_position_embeddings", kMaxContext);
  }
  return model;
}

}  // namespace faststream::convert
