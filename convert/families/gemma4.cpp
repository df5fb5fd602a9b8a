// Gemma 4: windowed layers beside ones that see all positions with wider heads, layers that read
// the keys and values of earlier ones, inputs of each layer, experts beside a feed-forward.
#include "convert/families/gemma4.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kOtherwise = {.n_layers = 30,
                                   .hidden = 2304,
                                   .n_heads = 8,
                                   .n_kv_heads = 4,
                                   .head_dim = 256,
                                   .ffn_hidden = 9216,
                                   .vocab = 262144,
                                   .max_context = 131072,
                                   .norm_eps = 1e-6F};
constexpr int64_t kWideHeadDim = 512;
constexpr int64_t kWindow = 512;
constexpr int64_t kPattern = 6;  // every sixth layer sees all
constexpr int64_t kInputSize = 256;
constexpr size_t kRopeOfAll = 1;

// The last layer with keys and values that is of the type of layer n; -1: none.
int64_t last_alike(const Gemma4Shape& shape, int64_t n) {
  const auto windowed = [&](int64_t i) { return shape.layers[static_cast<size_t>(i)].windowed; };
  int64_t alike = shape.n_own - 1;
  while (alike >= 0 && windowed(alike) != windowed(n)) --alike;
  return alike;
}

void add_experts(const Gemma4Shape& shape, LayerConfig& layer) {
  ExpertsConfig& experts = layer.experts.emplace();
  experts.count = shape.n_experts;
  experts.router = {
      .used = static_cast<int32_t>(shape.experts_used), .normalized = true, .expert_scales = true};
  experts.each = experts.shared = layer.ffn;
  experts.each.size = shape.expert_size;
  experts.router_norm = experts.norm = layer.ffn_norms.before;
  experts.norm_after = experts.shared_norm_after = layer.ffn_norms.before;
  layer.ffn.size = 0;
}

// Transformers adds up table · √size and norm(W x / √hidden), times √½.
void set_layer_inputs(int64_t size, ModelConfig& model) {
  LayerInputsConfig& inputs = model.layer_inputs;
  inputs.size = size;
  inputs.multiplier = std::sqrt(static_cast<float>(size)) * gemma4_input_scale();
  inputs.norm = inputs.norm_after = model.output.norm;
  inputs.norm.eps *= static_cast<float>(model.hidden);
  inputs.activation = model.layer_kinds[0].ffn.activation;
}

// --- config.json ---------------------------------------------------------------------------------

// A size that may be 0.
int64_t size_in(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise) {
  const auto said = config.find(key);
  return said ? said->as<int64_t>(0, most) : otherwise;
}

// Of layers that see all, as releases have them.
void set_wide_heads(const JsonView& config, std::vector<Gemma4Layer>& layers) {
  const int64_t head_dim = count_in(config, "global_head_dim", kMaxHeadDim, kWideHeadDim);
  const bool keys_are_values = config.get("attention_k_eq_v", false);
  for (Gemma4Layer& layer : layers) {
    if (layer.windowed) continue;
    layer.head_dim = head_dim;
    if (!keys_are_values) continue;
    layer.n_kv_heads = count_in(config, "num_global_key_value_heads", kMaxHeads, layer.n_kv_heads);
  }
}

Gemma4Shape layers_in(const JsonView& config, const PlainShape& sizes) {
  Gemma4Shape shape;
  shape.window = window_in(config, kWindow);
  const int64_t n_sharing = size_in(config, "num_kv_shared_layers", sizes.n_layers - 1, 0);
  shape.n_own = sizes.n_layers - n_sharing;
  std::vector<bool> windowed =
      windowed_in(config, sizes.n_layers, [](int64_t n) { return (n + 1) % kPattern != 0; });
  windowed.back() = false;  // as Transformers has it, whatever is said
  const bool doubles = config.get("use_double_wide_mlp", false);
  for (int64_t n = 0; n < sizes.n_layers; ++n) {
    const bool is_double = doubles && n >= shape.n_own;
    shape.layers.push_back({.windowed = windowed[static_cast<size_t>(n)],
                            .head_dim = sizes.head_dim,
                            .n_kv_heads = sizes.n_kv_heads,
                            .ffn_size = is_double ? 2 * sizes.ffn_hidden : sizes.ffn_hidden});
  }
  if (const auto heads = config.find("per_layer_config")) {
    set_heads_by_layer(*heads, shape.layers);
  } else {
    set_wide_heads(config, shape.layers);
  }
  shape.input_size = size_in(config, "hidden_size_per_layer_input", kMaxSize, kInputSize);
  if (shape.input_size != 0 &&
      count_in(config, "vocab_size_per_layer_input", kMaxSize, kOtherwise.vocab) != sizes.vocab) {
    config.fail("\"vocab_size_per_layer_input\" is not \"vocab_size\", which is not supported");
  }
  if (config.get("enable_moe_block", false)) {
    shape.n_experts = count_in(config, "num_experts", kMaxExperts);
    shape.experts_used = count_in(config, "top_k_experts", kMaxExperts);
    shape.expert_size = count_in(config, "moe_intermediate_size");
  }
  return shape;
}

// Of layers that see all.
RopeConfig rope_of_all(const JsonView& config, const PlainShape& sizes, int64_t head_dim) {
  constexpr std::string_view kType = "full_attention";
  static const nlohmann::json otherwise = {
      {"rope_parameters",
       {{kType,
         {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}}}};
  const bool is_said = config.find("rope_parameters").has_value();
  return rope_from_hf(is_said ? config : JsonView(otherwise, "Gemma 4"),
                      {.head_dim = head_dim, .max_context = sizes.max_context}, kType);
}

}  // namespace

void set_heads_by_layer(const JsonView& said, std::vector<Gemma4Layer>& layers) {
  for (const auto& [key, value] : said.value().items()) {
    size_t n = layers.size();
    const char* end = key.data() + key.size();
    if (std::from_chars(key.data(), end, n).ptr != end || n >= layers.size()) {
      said.fail("has a member " + in_quotes(key) + ", which is no layer's number");
    }
    const JsonView heads = said.member(key);
    heads.allow_only({"head_dim", "num_key_value_heads"});
    layers[n].head_dim = count_in(heads, "head_dim", kMaxHeadDim, layers[n].head_dim);
    layers[n].n_kv_heads = count_in(heads, "num_key_value_heads", kMaxHeads, layers[n].n_kv_heads);
  }
}

int64_t common_head_dim(const JsonView& config, const std::vector<Gemma4Layer>& layers,
                        bool windowed) {
  int64_t width = 0;
  for (const Gemma4Layer& layer : layers) {
    if (layer.windowed != windowed) continue;
    if (width != 0 && layer.head_dim != width) {
      config.fail("\"per_layer_config\" gives layers of one type heads of several widths");
    }
    width = layer.head_dim;
  }
  return width != 0 ? width : layers.front().head_dim;
}

float gemma4_input_scale() { return std::sqrt(0.5F); }

Modules gemma4_modules(const ModelConfig& config, bool keys_as_values) {
  Modules m;
  m.layer_inputs = "embed_tokens_per_layer";
  m.layer_inputs_projection = "per_layer_model_projection";
  m.layer_inputs_norm = "per_layer_projection_norm";
  m.layer_inputs_norm_scale = gemma4_input_scale();
  m.attention_after_norm = "post_attention_layernorm";
  m.ffn_norm = "pre_feedforward_layernorm";
  m.ffn_after_norm = "post_feedforward_layernorm";
  m.router_norm = "router.scale";
  m.router_norm_scale = inverse_root(static_cast<double>(config.hidden));
  m.router = "router.proj";
  m.expert_scales = "router.per_expert_scale";
  m.experts_norm = "pre_feedforward_layernorm_2";
  m.experts_after_norm = "post_feedforward_layernorm_2";
  m.experts_gate_up = {"experts.gate_up_proj"};
  m.experts_down = "experts.down_proj";
  m.experts_are_tensors = true;
  m.shared_gate_up = m.gate_up;
  m.shared_down = m.down;
  m.shared_after_norm = "post_feedforward_layernorm_1";
  m.input_gate = "per_layer_input_gate";
  m.input_out = "per_layer_projection";
  m.input_after_norm = "post_per_layer_input_norm";
  m.stream_scale = "layer_scalar";
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const AttentionConfig& attention = config.layer(n).attention();
    if (keys_as_values && attention.window == 0) m.keys_as_values.insert(n);
    if (!attention.kv_of) continue;
    // Checkpoints may hold keys and values of layers that have none.
    const std::string modules = m.layers + std::to_string(n) + ".self_attn.";
    leave_out(m, {modules + "k_proj", modules + "v_proj", modules + "k_norm"});
  }
  return m;
}

void make_gemma4(const Gemma4Shape& shape, ModelConfig& model) {
  model.embedding.multiplier = std::sqrt(static_cast<float>(model.hidden));
  if (shape.input_size != 0) set_layer_inputs(shape.input_size, model);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    const Gemma4Layer& own = shape.layers[static_cast<size_t>(n)];
    layer.name = own.windowed ? "windowed" : "full";
    layer.mixer_norms.after = layer.mixer_norms.before;
    layer.ffn_norms.after = layer.ffn_norms.before;
    layer.ffn.size = own.ffn_size;
    layer.scaled = true;
    AttentionConfig& attention = layer.attention();
    attention.head_dim = own.head_dim;
    attention.n_kv_heads = own.n_kv_heads;
    attention.scale = 1;
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer.mixer_norms.before;
    attention.v_norm = true;
    attention.window = own.windowed ? shape.window : 0;
    if (!own.windowed) attention.rope = kRopeOfAll;
    if (n >= shape.n_own) {
      layer.name += " of earlier keys";
      attention.kv_of = last_alike(shape, n);
    }
    if (shape.n_experts != 0) add_experts(shape, layer);
  });
}

// One model for text, pictures and sound: no inputs of layers, a wider window.
FamilyModel describe_gemma4_unified(const FamilySource& source) {
  nlohmann::json config = source.config.value();
  config["hidden_size_per_layer_input"] = 0;
  config["enable_moe_block"] = false;
  constexpr int64_t kUnifiedWindow = 1024;
  constexpr int64_t kUnifiedContext = 262144;
  if (!config.contains("sliding_window")) config["sliding_window"] = kUnifiedWindow;
  if (!config.contains("max_position_embeddings")) {
    config["max_position_embeddings"] = kUnifiedContext;
  }
  return describe_gemma4({source.config.with(config), source.weights});
}

FamilyModel describe_gemma4(const FamilySource& source) {
  const JsonView& config = source.config;
  // "vision": pictures alone see later tokens.
  if (config.get<std::string>("use_bidirectional_attention", "") == "all") {
    config.fail("\"use_bidirectional_attention\" is \"all\", which is not supported");
  }
  PlainShape sizes = shape_in(config, kOtherwise);
  const Gemma4Shape shape = layers_in(config, sizes);
  sizes.head_dim = common_head_dim(config, shape.layers, true);
  FamilyModel model{
      plain_decoder_in(config, sizes, {.tied = true, .rope_of = "sliding_attention"})};
  model.config.ropes.push_back(
      rope_of_all(config, sizes, common_head_dim(config, shape.layers, false)));
  model.config.output.soft_cap = number_in(config, "final_logit_softcapping", 0);
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.ffn.activation = activation_in(config, "hidden_activation", "gelu_pytorch_tanh");
  make_gemma4(shape, model.config);
  model.modules = gemma4_modules(model.config, config.get("attention_k_eq_v", false));
  return model;
}

}  // namespace faststream::convert
