// LFM2 (arXiv:2511.23404), dense and with experts, and LFM3: most layers are short convolutions.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr std::string_view kConvolution = "conv";
constexpr int64_t kMaxTaps = 64;

ShortConvolutionConfig convolution_in(const JsonView& config, int64_t taps) {
  ShortConvolutionConfig mixer;
  mixer.bias = mixer.convolution.bias = config.get("conv_bias", false);
  mixer.convolution.taps = count_in(config, "conv_L_cache", kMaxTaps, taps);
  return mixer;
}

void name_modules(Modules& m, int64_t hidden) {
  m.attention_norm = "operator_norm";
  m.q_norm = "self_attn.q_layernorm";
  m.k_norm = "self_attn.k_layernorm";
  m.attention_out = "self_attn.out_proj";
  m.recurrent_in = {{"conv.in_proj", 3 * hidden, 0, 3 * hidden}};
  m.recurrent_convolution = "conv.conv";
  m.recurrent_out = "conv.out_proj";
  m.ffn_norm = "ffn_norm";
  m.gate_up = {"feed_forward.w1", "feed_forward.w3"};
  m.down = "feed_forward.w2";
  m.output_norm = "embedding_norm";
}

FamilyModel lfm2_in(const JsonView& config, const PlainShape& otherwise) {
  PlainShape shape = shape_in(config, otherwise);
  shape.norm_eps = number_in(config, "norm_eps", 1e-5);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  model.config.output.tied = config.get("tie_embedding", model.config.output.tied);
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  first.ffn.activation = Activation::silu;
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;

  const ShortConvolutionConfig mixer = convolution_in(config, 3);
  std::vector<bool> attends(static_cast<size_t>(shape.n_layers), true);
  if (const auto list = config.find("full_attn_idxs")) {
    attends.assign(attends.size(), false);
    for (const auto n : list->integers<int64_t>(0, shape.n_layers - 1)) {
      attends[static_cast<size_t>(n)] = true;
    }
  }
  const std::vector<std::string> types =
      layer_types_in(config, shape.n_layers, {kConvolution, "full_attention"},
                     [&](int64_t n) { return attends[static_cast<size_t>(n)] ? 1 : 0; });
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] != kConvolution) return;
    layer.name = "convolution";
    layer.mixers = {mixer};
  });

  name_modules(model.modules, shape.hidden);
  return model;
}

// Two thirds of what config.json says, times a factor, and then a multiple of a number.
int64_t feed_forward_size(const JsonView& config, int64_t size) {
  if (!config.get("block_auto_adjust_ff_dim", true)) return size;
  size = 2 * size / 3;
  if (config.has("block_ffn_dim_multiplier") && !config.find("block_ffn_dim_multiplier")) {
    return size;
  }
  const double factor = config.get("block_ffn_dim_multiplier", 1.0);
  const int64_t multiple = count_in(config, "block_multiple_of", kMaxSize, 256);
  const double scaled = factor * static_cast<double>(size);
  if (!(scaled >= 1 && scaled <= static_cast<double>(kMaxSize))) {
    config.member("block_ffn_dim_multiplier").fail("is out of range");
  }
  return (static_cast<int64_t>(scaled) + multiple - 1) / multiple * multiple;
}

}  // namespace

FamilyModel describe_lfm2(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 2560,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 12288,
                                     .vocab = 65536,
                                     .max_context = 128000,
                                     .rope_theta = 1e6};
  FamilyModel model = lfm2_in(config, kOtherwise);
  for (LayerConfig& layer : model.config.layer_kinds) {
    layer.ffn.size = feed_forward_size(
        config, count_in(config, key_in(config, {"block_ff_dim", "intermediate_size"}), kMaxSize,
                         kOtherwise.ffn_hidden));
  }
  return model;
}

FamilyModel describe_lfm2_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 2048,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 7168,
                                     .vocab = 65536,
                                     .max_context = 128000,
                                     .rope_theta = 1e6};
  FamilyModel model = lfm2_in(config, kOtherwise);
  const int64_t dense = config.get("num_dense_layers", 2);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (n < dense) return;
    layer.name += " with experts";
    ExpertsConfig& experts =
        use_experts(layer, config, count_in(config, "num_experts", kMaxExperts, 32), 4);
    experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, 1792);
    experts.router.score = Router::Score::sigmoid;
    experts.router.correction = config.get("use_expert_bias", true);
    experts.router.normalized = config.get("norm_topk_prob", true);
    experts.router.scale = number_in(config, "routed_scaling_factor", 1);
  });
  Modules& m = model.modules;
  m.router = "feed_forward.gate";
  m.correction = "feed_forward.expert_bias";
  m.experts = "feed_forward.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  use_joined_experts(m, source.weights, base_in(source.weights, m));
  return model;
}

// LFM3: windows in some layers, which have a rotation of their own, norms after the branches, and a
// gate for each head.
FamilyModel describe_lfm3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 24,
                                     .hidden = 2048,
                                     .n_heads = 16,
                                     .n_kv_heads = 4,
                                     .head_dim = 128,
                                     .ffn_hidden = 7680,
                                     .vocab = 128000,
                                     .max_context = 128000};
  PlainShape shape = shape_in(config, kOtherwise);
  shape.norm_eps = number_in(config, "norm_eps", 1e-5);
  FamilyModel model{plain_decoder(shape)};
  model.config.output.tied = config.get("tie_word_embeddings", true);
  static const nlohmann::json otherwise = {
      {"rope_parameters",
       {{"sliding_attention", {{"rope_theta", 1e4}}},
        {"full_attention",
         {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}}}}};
  const bool is_said = config.find("rope_parameters").has_value();
  const JsonView ropes = is_said ? config : JsonView(otherwise, "LFM3");
  const RopeShape rope{.head_dim = shape.head_dim, .max_context = shape.max_context};
  const std::vector<std::string> types = layer_types_in(
      config, shape.n_layers, {kConvolution, "full_attention", "sliding_attention"}, [](int64_t n) {
        return n % 4 == 2 ? 1 : n % 4 == 0 && n > 0 ? 2 : 0;
      });
  model.config.ropes.clear();
  std::optional<size_t> of_all;
  std::optional<size_t> of_windows;
  for (auto [type, index] :
       {std::pair("full_attention", &of_all), std::pair("sliding_attention", &of_windows)}) {
    if (std::ranges::find(types, type) == types.end()) continue;
    *index = model.config.ropes.size();
    model.config.ropes.push_back(rope_from_hf(ropes, rope, type));
  }
  const ShortConvolutionConfig mixer = convolution_in(config, 7);
  const int64_t window = window_in(config, 256);
  const bool has_gates = config.get("use_attention_gate", true);
  const bool has_norms_after = config.get("use_sandwich_norm", true);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    const std::string& type = types[static_cast<size_t>(n)];
    if (has_norms_after) {
      layer.mixer_norms.after = layer.mixer_norms.before;
      layer.ffn_norms.after = layer.ffn_norms.before;
    }
    if (type == kConvolution) {
      layer.name = "convolution";
      layer.mixers = {mixer};
      return;
    }
    AttentionConfig& attention = layer.attention();
    const bool is_windowed = type == "sliding_attention";
    layer.name = is_windowed ? "windowed" : "attention";
    attention.window = is_windowed ? window : 0;
    attention.rope = is_windowed ? of_windows : of_all;
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer.mixer_norms.before;
    attention.output_gate = attention.head_gate = has_gates;
    set_attention_bias(layer, config.get("attention_bias", false));
  });
  Modules& m = model.modules;
  name_modules(m, shape.hidden);
  m.q_norm = "self_attn.q_norm";
  m.k_norm = "self_attn.k_norm";
  m.attention_out = "self_attn.o_proj";
  m.output_gate = "self_attn.gate_proj";
  m.attention_after_norm = "post_operator_norm";
  m.ffn_after_norm = "post_ffn_norm";
  return model;
}

}  // namespace faststream::convert
