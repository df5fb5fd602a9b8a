// MiniCPM 1, 2 and 4 (arXiv:2404.06395, arXiv:2506.07900): Llama with multipliers that follow from
// its depth and width, but for the embedding's folded into weights.
#include <cmath>
#include <string_view>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Its code makes a table of rotations for the longest text, whatever the length of one: LongRoPE's
// factors of longer texts are all texts' or nobody's.
void rotate_all_alike(ModelConfig& model) {
  for (RopeConfig& rope : model.ropes) {
    if (rope.long_frequencies.empty()) continue;
    if (model.max_context > rope.original_max_context) {
      rope.frequencies = rope.long_frequencies;
    }
    rope.long_frequencies.clear();
    rope.original_max_context = 0;
  }
}

}  // namespace

FamilyModel describe_minicpm(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "num_experts", 0);
  const PlainShape shape = shape_in(config);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  set_attention_bias(model.config.layer_kinds[0], config.get("attention_bias", false));
  rotate_all_alike(model.config);
  const auto number = [&](std::string_view key) {
    static_cast<void>(config.member(key));  // what its class has otherwise is no model's
    return number_in(config, key, 1);
  };
  model.config.embedding.multiplier = number("scale_emb");
  model.modules.residual_scale =
      number("scale_depth") / std::sqrt(static_cast<float>(shape.n_layers));
  model.modules.output_norm_scale = number("dim_model_base") / static_cast<float>(shape.hidden);
  // Texts of fewer tokens are attended to as a whole.
  if (const auto sparse = config.find("sparse_config")) {
    constexpr int64_t kDense = 8192;
    const int64_t dense = sparse->get("dense_len", kDense);
    if (dense < 2) sparse->fail("asks for sparse attention in all texts, which is not supported");
    end_context(model.config, dense - 1, ContextEnd::sparse_attention);
  }
  return model;
}

}  // namespace faststream::convert
