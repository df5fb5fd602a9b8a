// Command R (Cohere) and Command R7B (Cohere 2): attention and feed-forward side by side.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

FamilyModel cohere_in(const JsonView& config, double theta) {
  const PlainShape otherwise = {.n_layers = 40,
                                .hidden = 8192,
                                .n_heads = 64,
                                .ffn_hidden = 22528,
                                .vocab = 256000,
                                .max_context = 8192,
                                .rope_theta = theta};
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.tied = true})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps", false));
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  set_attention_bias(layer, config.get("attention_bias", false));
  model.modules.interleaved = true;
  model.modules.output_norm_scale = number_in(config, "logit_scale", 0.0625);
  return model;
}

}  // namespace

FamilyModel describe_cohere(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = cohere_in(config, 500000);
  if (config.get("use_qk_norm", false)) {
    AttentionConfig& attention = model.config.layer_kinds[0].attention();
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer_norm_in(config, "layer_norm_eps", false);
    model.modules.norms_of_each_head = true;
  }
  return model;
}

FamilyModel describe_cohere2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = cohere_in(config, 10000);
  constexpr int64_t kWindow = 4096;
  constexpr int64_t kPattern = 4;  // every fourth layer sees all, and rotates nothing
  const int64_t pattern =
      count_in(config, key_in(config, {"sliding_window_pattern", "_sliding_window_pattern"}),
               kMaxLayers, kPattern);
  set_windows(model.config, config, window_in(config, kWindow),
              [&](int64_t n) { return (n + 1) % pattern != 0; });
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
  return model;
}

}  // namespace faststream::convert
