// SmolLM 3: Llama with layers that have no rotation.
#include "convert/families/family.h"

namespace faststream::convert {
FamilyModel describe_smollm3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 4, .max_context = 32768, .norm_eps = 1e-6F, .rope_theta = 2e6};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.ffn.bias = config.get("mlp_bias", false);
  const std::vector<bool> rotates =
      rotating_layers(config, config.find("no_rope_layers"), shape.n_layers);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (rotates[static_cast<size_t>(n)]) return;
    layer.name = "without rotation";
    layer.attention().rope.reset();
  });
  if (config.get("use_sliding_window", false)) {
    set_windows(model.config, config, window_in(config, 0),
                [&](int64_t n) { return !rotates[static_cast<size_t>(n)]; });
  }
  return model;
}

}  // namespace faststream::convert
