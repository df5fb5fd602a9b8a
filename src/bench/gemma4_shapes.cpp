#include "bench/gemma4_shapes.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace faststream::bench {
namespace {

constexpr int64_t kPattern = 6;  // every sixth layer sees all positions
constexpr int64_t kWideHeadDim = 512;
constexpr ptrdiff_t kRotatedPairs = 64;  // of wide heads

// Both kinds of layers, of which the second sees all positions.
void make_gemma4(ModelConfig& config, int64_t window, int64_t n_wide_kv_heads) {
  RopeConfig& wide_rope = config.ropes.emplace_back();
  wide_rope.name = "wide";
  wide_rope.frequencies = plain_frequencies(1e6, kWideHeadDim);
  std::fill(wide_rope.frequencies.begin() + kRotatedPairs, wide_rope.frequencies.end(), 0.0F);
  config.embedding.multiplier = std::sqrt(static_cast<float>(config.hidden));
  config.output.soft_cap = 30;

  LayerConfig& windowed = config.layer_kinds[0];
  windowed.name = "windowed";
  windowed.mixer_norms.after = windowed.mixer_norms.before;
  windowed.ffn_norms.after = windowed.ffn_norms.before;
  windowed.ffn.activation = Activation::gelu_tanh;
  windowed.scaled = true;
  AttentionConfig& attention = windowed.attention();
  attention.scale = 1;
  attention.qk_norm = QkNorm::head;
  attention.qk_norm_as = windowed.mixer_norms.before;
  attention.v_norm = true;
  attention.window = window;

  LayerConfig wide = windowed;
  wide.name = "wide";
  wide.attention().head_dim = kWideHeadDim;
  wide.attention().n_kv_heads = n_wide_kv_heads;
  wide.attention().window = 0;
  wide.attention().rope = 1;
  config.layer_kinds.push_back(wide);
  for (size_t n = kPattern - 1; n < config.layers.size(); n += kPattern) config.layers[n] = 1;
}

}  // namespace

void make_gemma4_26b_a4b(ModelConfig& config) {
  make_gemma4(config, 1024, 2);
  for (LayerConfig& layer : config.layer_kinds) {
    const NormConfig norm = layer.ffn_norms.before;
    FeedForwardConfig each = layer.ffn;
    each.size = 704;
    layer.experts = {.count = 128,
                     .router = {.used = 8, .normalized = true, .expert_scales = true},
                     .each = each,
                     .shared = layer.ffn,
                     .shared_gate = false,
                     .router_norm = norm,
                     .norm = norm,
                     .norm_after = norm,
                     .shared_norm_after = norm};
    layer.ffn = {};
  }
}

void make_gemma4_e4b(ModelConfig& config) {
  make_gemma4(config, 512, config.layer_kinds[0].attention().n_kv_heads);
  const NormConfig norm = config.output.norm;
  config.layer_inputs = {.size = 256,
                         .multiplier = std::sqrt(128.0F),
                         .norm = norm,
                         .activation = Activation::gelu_tanh,
                         .norm_after = norm};
  constexpr size_t kOwn = 24;  // layers with keys and values of their own
  for (const size_t kind : {0, 1}) {
    LayerConfig layer = config.layer_kinds[kind];
    layer.name += " of earlier keys";
    layer.attention().kv_of = static_cast<int64_t>(kOwn - 2 + kind);
    config.layer_kinds.push_back(layer);
  }
  for (size_t n = kOwn; n < config.layers.size(); ++n) config.layers[n] += 2;
}

}  // namespace faststream::bench
