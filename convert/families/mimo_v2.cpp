// MiMo V2 of Xiaomi: windowed layers with sinks and twice the KV heads beside
// ones that see all, values narrower than keys.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

// Types of layers as Transformers has them, or flags as the release does.
std::vector<bool> layers_with_windows(const JsonView& config, int64_t n_layers) {
  const auto flags = config.find("hybrid_layer_pattern");
  if (flags && !config.find("layer_types")) return flags_in(*flags, n_layers);
  constexpr int64_t kEvery = 6;
  return windowed_in(config, n_layers, [](int64_t n) { return n != 0 && (n + 1) % kEvery != 0; });
}

std::vector<bool> layers_with_experts(const JsonView& config, int64_t n_layers) {
  const auto flags = config.find("moe_layer_freq");
  if (flags && !config.find("mlp_layer_types")) return flags_in(*flags, n_layers);
  return sparse_in(config, n_layers, 1);
}

// The release counts the tokens before a query's own.
int64_t window_of(const JsonView& config) {
  if (const auto before = config.find("sliding_window_size")) {
    return before->as<int64_t>(1, kMaxContext - 1) + 1;
  }
  constexpr int64_t kWindow = 129;
  return count_in(config, "sliding_window", kMaxContext, kWindow);
}

// A factor of values; null stands for none.
float value_scale_in(const JsonView& config) {
  constexpr std::string_view kKey = "attention_value_scale";
  return config.has(kKey) && !config.find(kKey) ? 1 : number_in(config, kKey, 0.707);
}

// Layers with windows and plain feed-forwards of that size, which read hidden states before the
// last norm, the model's all of them.
void add_predictors(FamilyModel& model, const Checkpoint& weights, int64_t ffn_size) {
  const auto windowed =
      std::ranges::find_if(model.config.layer_kinds,
                           [](const LayerConfig& layer) { return layer.attention().window > 0; });
  if (windowed == model.config.layer_kinds.end()) return;
  LayerConfig layer = *windowed;
  layer.experts.reset();
  layer.ffn.size = ffn_size;
  Modules modules = model.modules;
  modules.layers = "mtp.layers.";
  const std::string base = base_in(weights, modules);
  for (int64_t n = 0;; ++n) {
    const std::string of_layer = modules.layers + std::to_string(n) + ".";
    const auto has = [&](const std::string& name) {
      return weights.find(base + of_layer + name) != nullptr;
    };
    if (!has("eh_proj.weight")) return;
    layer.attention().sinks = has(modules.sinks);
    if (has("pre_mlp_layernorm.weight")) modules.ffn_norm = "pre_mlp_layernorm";
    modules.embedding_norm = of_layer + "enorm";
    modules.hidden_norm = of_layer + "hnorm";
    modules.hidden_projection = of_layer + "eh_proj";
    if (has("final_layernorm.weight")) modules.output_norm = of_layer + "final_layernorm";
    if (!add_predictor(layer, n, modules, model.config, model.predictors)) return;
    HiddenInputConfig& input = *model.config.predictors.back().hidden_input;
    input.before_output_norm = true;
    input.of_decoder = n > 0;
  }
}

}  // namespace

FamilyModel describe_mimo_v2(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 48,
                                     .hidden = 4096,
                                     .n_heads = 64,
                                     .n_kv_heads = 4,
                                     .head_dim = 192,
                                     .ffn_hidden = 16384,
                                     .vocab = 152576,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 5e6};
  constexpr double kShare = 0.334;  // of a head that is rotated
  constexpr double kThetaOfWindows = 10000;
  PlainShape shape = shape_in(config, kOtherwise);
  shape.norm_eps = number_in(config, "layernorm_epsilon", shape.norm_eps);
  const int64_t v_head_dim = count_in(config, "v_head_dim", kMaxHeadDim, 128);
  refuse_other(config, "swa_num_attention_heads", shape.n_heads);
  refuse_other(config, "swa_head_dim", shape.head_dim);
  refuse_other(config, "swa_v_head_dim", v_head_dim);
  refuse_other(config, "scoring_func", "sigmoid");
  FamilyModel model{
      plain_decoder_in(config, shape, {.rotated_share = kShare, .rope_of = "full_attention"})};
  const std::vector<bool> windowed = layers_with_windows(config, shape.n_layers);
  const int64_t window = window_of(config);
  const int64_t n_kv_heads =
      count_in(config, "swa_num_key_value_heads", kMaxHeads, 2 * shape.n_kv_heads);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    const bool is_windowed = windowed[static_cast<size_t>(n)];
    layer.name = is_windowed ? "windowed" : "full";
    AttentionConfig& attention = layer.attention();
    attention.qkv_bias = config.get("attention_bias", false);
    attention.value_head_dim = v_head_dim;
    attention.sinks = is_windowed ? config.get("add_swa_attention_sink_bias", true)
                                  : config.get("add_full_attention_sink_bias", false);
    if (!is_windowed) return;
    attention.n_kv_heads = n_kv_heads;
    attention.window = window;
  });
  set_rope_of_windows(model.config, config, number_in(config, "swa_rope_theta", kThetaOfWindows),
                      kShare);
  use_routed_experts(model.config, config, layers_with_experts(config, shape.n_layers),
                     {.shared = 0});
  Modules& m = model.modules;
  m.value_scale = value_scale_in(config);
  m.sinks = "self_attn.attention_sink_bias";
  model.predictors.names = {"model.mtp.", "mtp."};
  add_predictors(model, source.weights, shape.ffn_hidden);
  return model;
}

}  // namespace faststream::convert
