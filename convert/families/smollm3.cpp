// SmolLM 3: Llama with layers that have no rotation.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Whether each layer rotates: 1 in "no_rope_layers" means that it does.
std::vector<bool> rotating(const JsonView& config, int64_t n_layers) {
  std::vector<bool> rotates;
  if (const auto list = config.find("no_rope_layers")) {
    for (const int64_t flag : list->integers<int64_t>(0, 1)) rotates.push_back(flag == 1);
    if (rotates.size() != static_cast<size_t>(n_layers)) {
      list->fail("has " + std::to_string(rotates.size()) + " entries for " +
                 std::to_string(n_layers) + " layers");
    }
    return rotates;
  }
  const int64_t interval = count_in(config, "no_rope_layer_interval", kMaxLayers, 4);
  for (int64_t n = 0; n < n_layers; ++n) rotates.push_back((n + 1) % interval != 0);
  return rotates;
}

}  // namespace

FamilyModel describe_smollm3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {
      .n_kv_heads = 4, .max_context = 32768, .norm_eps = 1e-6F, .rope_theta = 2e6};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.ffn.bias = config.get("mlp_bias", false);
  const std::vector<bool> rotates = rotating(config, shape.n_layers);
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
