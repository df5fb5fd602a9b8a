// Qwen 3.5, dense and with experts, and Qwen3-Next: three of four layers are gated delta nets
// (arXiv:2412.06464), the others have attention with a gate.
#include "convert/families/qwen3_5.h"

#include <algorithm>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr std::string_view kLinear = "linear_attention";

constexpr PlainShape kHybridOtherwise = {.n_layers = 32,
                                         .hidden = 4096,
                                         .n_heads = 16,
                                         .n_kv_heads = 4,
                                         .head_dim = 256,
                                         .ffn_hidden = 12288,
                                         .vocab = 248320,
                                         .max_context = 32768,
                                         .norm_eps = 1e-6F};

constexpr double kRotatedShare = 0.25;

// The first products of delta nets: queries, keys and values together, then the gates of sums; and
// those of strengths and steps.
void name_flat_products(const DeltaNetConfig& mixer, Modules& m) {
  const int64_t qkv = 2 * mixer.k_dim() + mixer.v_dim();
  m.recurrent_in = {{"linear_attn.in_proj_qkv", qkv, 0, qkv},
                    {"linear_attn.in_proj_z", mixer.v_dim(), 0, mixer.v_dim()}};
  m.recurrent_gates = {{"linear_attn.in_proj_a", mixer.n_value_heads, 0, mixer.n_value_heads},
                       {"linear_attn.in_proj_b", mixer.n_value_heads, 0, mixer.n_value_heads}};
}

DeltaNetConfig delta_net_in(const JsonView& config, const NormConfig& norm) {
  constexpr int64_t kTaps = 64;
  DeltaNetConfig mixer{
      .n_key_heads = count_in(config, "linear_num_key_heads", kMaxHeads, 16),
      .n_value_heads = count_in(config, "linear_num_value_heads", kMaxHeads, 32),
      .key_head_dim = count_in(config, "linear_key_head_dim", kMaxHeadDim, 128),
      .value_head_dim = count_in(config, "linear_value_head_dim", kMaxHeadDim, 128),
      .convolution = {},
      .norm = norm};
  mixer.convolution = {.taps = count_in(config, "linear_conv_kernel_dim", kTaps, 4),
                       .activation = activation_in(config, "hidden_act", "silu")};
  return mixer;
}

FamilyModel hybrid_in(const JsonView& config, const PlainShape& otherwise) {
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, otherwise), {.rotated_share = kRotatedShare})};
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  set_attention_bias(first, config.get("attention_bias", false));
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  first.attention().output_gate = true;

  const DeltaNetConfig mixer = delta_net_in(config, first.mixer_norms.before);
  constexpr int64_t kInterval = 4;
  const int64_t interval = count_in(config, "full_attention_interval", kMaxLayers, kInterval);
  const std::vector<std::string> types =
      layer_types_in(config, model.config.n_layers(), {kLinear, "full_attention"},
                     [&](int64_t n) { return (n + 1) % interval != 0 ? 0 : 1; });
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] != kLinear) return;
    layer.name = "delta net";
    layer.mixers = {mixer};
  });

  Modules& m = model.modules;
  m.norm_add = 1;
  m.recurrent_convolution = "linear_attn.conv1d";
  m.recurrent_decay = "linear_attn.A_log";
  m.recurrent_step = "linear_attn.dt_bias";
  m.recurrent_norm = "linear_attn.norm";
  m.recurrent_out = "linear_attn.out_proj";
  return model;
}

// Experts in all layers but those that are named as dense, with one more that all tokens use.
void set_experts(FamilyModel& model, const FamilySource& source, int64_t count, int64_t used) {
  const JsonView& config = source.config;
  const int64_t step = count_in(config, "decoder_sparse_step", kMaxLayers, 1);
  std::vector<int64_t> dense;
  if (const auto list = config.find("mlp_only_layers")) {
    dense = list->integers<int64_t>(0, kMaxLayers);
  }
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if ((n + 1) % step != 0 || std::ranges::find(dense, n) != dense.end()) return;
    layer.name += " with experts";
    ExpertsConfig& experts =
        use_experts(layer, config, count_in(config, "num_experts", kMaxExperts, count), used);
    experts.router.normalized = config.get("norm_topk_prob", true);
    experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, 512);
    experts.shared = experts.each;
    experts.shared.size = count_in(config, "shared_expert_intermediate_size", kMaxSize, 512);
    experts.shared_gate = true;
  });
  Modules& m = model.modules;
  use_joined_experts(m, source.weights, base_in(source.weights, m) + m.layers);
}

const DeltaNetConfig& delta_net_of(const FamilyModel& model, const JsonView& config) {
  for (const LayerConfig& layer : model.config.layer_kinds) {
    if (const auto* mixer = layer.find<DeltaNetConfig>()) return *mixer;
  }
  config.fail("no layer is \"linear_attention\"");
}

}  // namespace

void name_products_by_head(const DeltaNetConfig& mixer, const std::string& in, Modules& modules) {
  const int64_t heads = mixer.n_key_heads;
  const int64_t key = mixer.key_head_dim;
  const int64_t value = mixer.n_value_heads / heads * mixer.value_head_dim;
  const int64_t of_head = 2 * key + 2 * value;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t head = 0; head < heads; ++head) {
      modules.recurrent_in.push_back({in, heads * of_head, head * of_head + first, count});
    }
  };
  add(0, key);
  add(key, key);
  add(2 * key, value);
  add(2 * key + value, value);
}

void name_gates_by_head(const DeltaNetConfig& mixer, const std::string& gates, Modules& modules) {
  const int64_t heads = mixer.n_key_heads;
  const int64_t values = mixer.n_value_heads / heads;
  for (const int64_t first : {values, int64_t{0}}) {  // steps stand behind strengths
    for (int64_t head = 0; head < heads; ++head) {
      modules.recurrent_gates.push_back(
          {gates, 2 * mixer.n_value_heads, head * 2 * values + first, values});
    }
  }
}

FamilyModel describe_qwen3_5(const FamilySource& source) {
  FamilyModel model = hybrid_in(source.config, kHybridOtherwise);
  name_flat_products(delta_net_of(model, source.config), model.modules);
  add_predictors_beside(source.weights, model.modules, model.config, model.predictors);
  return model;
}

FamilyModel describe_qwen3_5_moe(const FamilySource& source) {
  PlainShape otherwise = kHybridOtherwise;
  otherwise.n_layers = 40;
  otherwise.hidden = 2048;
  otherwise.n_kv_heads = 2;
  otherwise.ffn_hidden = 512;
  FamilyModel model = hybrid_in(source.config, otherwise);
  set_experts(model, source, 256, 8);
  name_flat_products(delta_net_of(model, source.config), model.modules);
  add_predictors_beside(source.weights, model.modules, model.config, model.predictors);
  return model;
}

FamilyModel describe_qwen3_next(const FamilySource& source) {
  PlainShape otherwise = kHybridOtherwise;
  otherwise.n_layers = 48;
  otherwise.hidden = 2048;
  otherwise.n_kv_heads = 2;
  otherwise.ffn_hidden = 5632;
  otherwise.vocab = 151936;
  FamilyModel model = hybrid_in(source.config, otherwise);
  set_experts(model, source, 512, 10);
  const DeltaNetConfig& mixer = delta_net_of(model, source.config);
  name_products_by_head(mixer, "linear_attn.in_proj_qkvz", model.modules);
  name_gates_by_head(mixer, "linear_attn.in_proj_ba", model.modules);
  add_predictors_beside(source.weights, model.modules, model.config, model.predictors);
  return model;
}

}  // namespace faststream::convert
