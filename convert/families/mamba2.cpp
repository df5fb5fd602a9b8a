// Mamba 2 (arXiv:2405.21060), whose layers have no feed-forward, and Bamba, whose layers do, and
// some of which have attention.
#include <algorithm>

#include "convert/families/state_space.h"

namespace faststream::convert {

FamilyModel describe_mamba2(const FamilySource& source) {
  const JsonView& config = source.config;
  // Nothing in it depends on a length, and config.json names none.
  constexpr int64_t kContext = int64_t{1} << 20;
  const NormConfig norm{.kind = NormKind::rms,
                        .eps = number_in(config, "layer_norm_epsilon", 1e-5)};
  FamilyModel model{
      plain_decoder({.n_layers = count_in(config, "num_hidden_layers", kMaxLayers, 64),
                     .hidden = count_in(config, "hidden_size", kMaxSize, 4096),
                     .n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 2,
                     .vocab = count_in(config, "vocab_size", kMaxSize, 32768),
                     .max_context = kContext})};
  model.config.ropes.clear();
  model.config.output = {.norm = norm, .tied = config.get("tie_word_embeddings", false)};
  const StateSpaceKeys keys{.heads = "num_heads",
                            .head_dim = "head_dim",
                            .groups = "n_groups",
                            .state = "state_size",
                            .taps = "conv_kernel",
                            .expand = "expand",
                            .convolution_bias = "use_conv_bias",
                            .bias = "use_bias",
                            .groups_otherwise = 8,
                            .state_otherwise = 128};
  LayerConfig& layer = model.config.layer_kinds[0];
  const StateSpaceConfig mixer = state_space_in(config, keys, model.config.hidden, norm);
  layer.mixer_norms.before = norm;
  layer.mixers = {mixer};
  layer.ffn_norms = {};
  layer.ffn = {};
  Modules& m = model.modules;
  m.base = "backbone.";
  m.embedding = "embeddings";
  m.attention_norm = "norm";
  m.output_norm = "norm_f";
  name_state_space(m, mixer, "mixer.");
  return model;
}

FamilyModel describe_bamba(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 128000,
                                     .max_context = 262144};
  constexpr double kRotatedShare = 0.5;
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, kOtherwise), {.rotated_share = kRotatedShare})};
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  set_attention_bias(first, config.get("attention_bias", false));
  first.ffn.bias = config.get("mlp_bias", false);
  std::vector<int64_t> attends;
  if (const auto list = config.find("attn_layer_indices")) {
    attends = list->integers<int64_t>(0, kMaxLayers);
  }
  const StateSpaceConfig mixer =
      state_space_in(config, {}, model.config.hidden, first.mixer_norms.before);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (std::ranges::find(attends, n) != attends.end()) return;
    layer.name = "state space";
    layer.mixers = {mixer};
  });
  Modules& m = model.modules;
  m.ffn_norm = "pre_ff_layernorm";
  m.gate_up = {"feed_forward.gate_proj", "feed_forward.up_proj"};
  m.down = "feed_forward.down_proj";
  m.output_norm = "final_layernorm";
  name_state_space(m, mixer, "mamba.");
  return model;
}

}  // namespace faststream::convert
