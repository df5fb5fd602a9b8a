// OLMo (arXiv:2402.00838), OLMo 2 (arXiv:2501.00656), OLMo 3, OLMo hybrid, OLMoE (arXiv:2409.02060)
// and FlexOlmo (arXiv:2507.07024).
#include <algorithm>
#include <string>
#include <utility>

#include "convert/families/delta_net.h"

namespace faststream::convert {
namespace {

// What all share: queries and keys are normalized before they are cut into heads.
FamilyModel olmo_in(const JsonView& config, const PlainShape& otherwise,
                    std::string_view rope_of = "") {
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.rope_of = rope_of})};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::whole;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  return model;
}

// Norms after the branches, and none before them.
FamilyModel with_norms_after(FamilyModel model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
    norms->after = std::exchange(norms->before, {});
  }
  model.modules.attention_after_norm = "post_attention_layernorm";
  model.modules.ffn_after_norm = "post_feedforward_layernorm";
  return model;
}

constexpr std::string_view kLinearAttention = "linear_attention";

// Of an OLMo hybrid's layers that have no attention. Strengths go up to 2, so that a state may
// change its sign (arXiv:2411.12537).
DeltaNetConfig delta_net_in(const JsonView& config, const ModelConfig& model) {
  constexpr int64_t kTaps = 64;
  const int64_t n_heads = model.layer_kinds[0].attention().n_heads;
  DeltaNetConfig mixer;
  mixer.n_key_heads = count_in(config, "linear_num_key_heads", kMaxHeads, n_heads);
  mixer.n_value_heads = count_in(config, "linear_num_value_heads", kMaxHeads, n_heads);
  mixer.key_head_dim = count_in(config, "linear_key_head_dim", kMaxHeadDim,
                                3 * model.hidden / (4 * mixer.n_key_heads));
  mixer.value_head_dim =
      count_in(config, "linear_value_head_dim", kMaxHeadDim, 2 * mixer.key_head_dim);
  mixer.convolution = {.taps = count_in(config, "linear_conv_kernel_dim", kTaps, 4),
                       .activation = activation_in(config, "hidden_act", "silu")};
  mixer.strength = config.get("linear_allow_neg_eigval", true) ? 2 : 1;
  mixer.norm = {.kind = NormKind::rms, .eps = 1e-5F};  // whatever that of other norms is
  return mixer;
}

// Whether "rope_parameters" are there without a theta.
bool has_no_rotation(const JsonView& config) {
  const auto rope = config.find("rope_parameters");
  return rope && rope->has("rope_theta") && !rope->find("rope_theta");
}

// The first of two names that norms of a checkpoint have.
std::string norm_in(const Checkpoint& weights, const std::string& first,
                    const std::string& second) {
  const bool is_first = std::ranges::any_of(weights.tensors(), [&](const auto& tensor) {
    return tensor.first.ends_with("." + first + ".weight");
  });
  return is_first ? first : second;
}

void name_delta_net(const DeltaNetConfig& mixer, const Checkpoint& weights, Modules& m) {
  const auto whole = [](const char* module, int64_t rows) {
    return RecurrentRows{module, rows, 0, rows};
  };
  m.recurrent_in = {
      whole("linear_attn.q_proj", mixer.k_dim()), whole("linear_attn.k_proj", mixer.k_dim()),
      whole("linear_attn.v_proj", mixer.v_dim()), whole("linear_attn.g_proj", mixer.v_dim())};
  m.recurrent_gates = {whole("linear_attn.a_proj", mixer.n_value_heads),
                       whole("linear_attn.b_proj", mixer.n_value_heads)};
  m.recurrent_convolution = "linear_attn.conv1d";
  m.recurrent_decay = "linear_attn.A_log";
  m.recurrent_step = "linear_attn.dt_bias";
  m.recurrent_norm = "linear_attn.o_norm";
  m.recurrent_out = "linear_attn.o_proj";
  // Releases' names, or those of Transformers' class, which saves one of its own as releases'.
  m.attention_norm = norm_in(weights, "attention_layer_norm", m.attention_norm);
  m.attention_after_norm = norm_in(weights, m.attention_after_norm, "feedforward_layer_norm");
  m.ffn_norm = norm_in(weights, "feedforward_layer_norm", m.ffn_norm);
}

// Experts in every layer.
FamilyModel with_experts(FamilyModel model, const JsonView& config, int64_t used) {
  const int64_t count =
      count_in(config, key_in(config, {"num_local_experts", "num_experts"}), kMaxExperts);
  ExpertsConfig& experts = use_experts(model.config.layer_kinds[0], config, count, used);
  experts.router.normalized = config.get("norm_topk_prob", false);
  return model;
}

void refuse_clipping(const JsonView& config) {
  refuse_if_present(config, "clip_qkv", "bounds of queries, keys and values");
}

}  // namespace

// Its norms have no weights.
FamilyModel describe_olmo(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_clipping(config);
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  set_norms(model.config, {.kind = NormKind::layer, .eps = 1e-5F});
  set_attention_bias(model.config.layer_kinds[0], config.get("attention_bias", false));
  model.modules.attention_norm = model.modules.ffn_norm = model.modules.output_norm = "";
  return model;
}

FamilyModel describe_olmo2(const FamilySource& source) {
  return with_norms_after(olmo_in(source.config, {.max_context = 2048, .norm_eps = 1e-5F}));
}

FamilyModel describe_olmo3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr double kTheta = 500000;
  constexpr int64_t kWindow = 4096;
  FamilyModel model = with_norms_after(olmo_in(
      config, {.max_context = 2048, .norm_eps = 1e-5F, .rope_theta = kTheta}, "full_attention"));
  set_windows(model.config, config, window_in(config, kWindow),
              [](int64_t n) { return (n + 1) % 4 != 0; });
  set_rope_of_windows(model.config, config, kTheta);  // "rope_theta" is of the others alone
  return model;
}

// Three of four layers are gated delta nets with norms before their branches; the others have
// attention, and norms after them.
FamilyModel describe_olmo_hybrid(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 3840,
                                     .n_heads = 30,
                                     .ffn_hidden = 11008,
                                     .vocab = 100352,
                                     .max_context = 65536,
                                     .norm_eps = 1e-6F};
  FamilyModel model = with_norms_after(olmo_in(config, kOtherwise));
  model.config.layer_kinds[0].name = "attention";
  if (has_no_rotation(config)) remove_rotation(model.config);
  const DeltaNetConfig mixer = delta_net_in(config, model.config);
  const int64_t n_layers = model.config.n_layers();
  const int64_t interval = std::min<int64_t>(n_layers, 4);
  const std::vector<std::string> types =
      layer_types_in(config, n_layers, {kLinearAttention, "full_attention"},
                     [&](int64_t n) { return (n + 1) % interval != 0 ? 0 : 1; });
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] != kLinearAttention) return;
    layer.name = "delta net";
    layer.mixers = {mixer};
    for (BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
      norms->before = std::exchange(norms->after, {});
    }
  });
  name_delta_net(mixer, source.weights, model.modules);
  model.finish = split_convolutions;  // as releases have them
  return model;
}

FamilyModel describe_olmoe(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_clipping(config);
  return with_experts(olmo_in(config, {.max_context = 4096, .norm_eps = 1e-5F}), config, 8);
}

FamilyModel describe_flex_olmo(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.max_context = 4096, .norm_eps = 1e-6F, .rope_theta = 500000};
  return with_experts(with_norms_after(olmo_in(config, kOtherwise)), config, 5);
}

}  // namespace faststream::convert
