// The description as JSON. Members that have their default are left out, so that a person reads
// what is special; members that this version does not know are errors.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream {
namespace {

using nlohmann::json;

// Names of an enumeration's values, in their order.
template <typename Enum>
struct Names;
template <>
struct Names<WeightFormat> {
  static constexpr std::array kAll = [] {
    std::array<std::string_view, kWeightFormats.size()> names;
    std::ranges::transform(kWeightFormats, names.begin(), format_name);
    return names;
  }();
};
template <>
struct Names<TensorKind> {
  static inline const auto kAll = [] {
    std::array<std::string_view, static_cast<size_t>(TensorKind::output) + 1> names;
    for (size_t n = 0; n < names.size(); ++n) names[n] = kind_name(static_cast<TensorKind>(n));
    return names;
  }();
};
template <>
struct Names<NormKind> {
  static constexpr std::array kAll = {"none", "rms", "layer"};
};
template <>
struct Names<QkNorm> {
  static constexpr std::array kAll = {"none", "head", "whole"};
};
template <>
struct Names<Router::Score> {
  static constexpr std::array kAll = {"softmax", "sigmoid", "sparse_mixer", "logit"};
};
template <>
struct Names<Router::GroupScore> {
  static constexpr std::array kAll = {"two_best", "largest"};
};
template <>
struct Names<ContextEnd> {
  static constexpr std::array kAll = {"trained", "sparse_attention", "scaled_queries"};
};
template <>
struct Names<Pooling> {
  static constexpr std::array kAll = {"first", "last",         "largest",
                                      "mean",  "mean_by_root", "weighted_mean"};
};
template <>
struct Names<Activation> {
  static constexpr std::array kAll = {"none",     "silu",           "gelu",        "gelu_tanh",
                                      "relu",     "relu_squared",   "tanh",        "sigmoid",
                                      "softplus", "swiglu_clamped", "silu_clamped"};
};

// Each struct of the description lists its members once, as visit(name, pointer to member).
template <typename Visit>
void members(Visit visit, const NormConfig* /*of*/) {
  visit("kind", &NormConfig::kind);
  visit("eps", &NormConfig::eps);
  visit("bias", &NormConfig::bias);
}

template <typename Visit>
void members(Visit visit, const RopeConfig* /*of*/) {
  visit("name", &RopeConfig::name);
  visit("frequencies", &RopeConfig::frequencies);
  visit("attention_factor", &RopeConfig::attention_factor);
  visit("original_max_context", &RopeConfig::original_max_context);
  visit("long_frequencies", &RopeConfig::long_frequencies);
  visit("dynamic_factor", &RopeConfig::dynamic_factor);
}

template <typename Visit>
void members(Visit visit, const AttentionConfig* /*of*/) {
  visit("n_heads", &AttentionConfig::n_heads);
  visit("n_kv_heads", &AttentionConfig::n_kv_heads);
  visit("head_dim", &AttentionConfig::head_dim);
  visit("value_head_dim", &AttentionConfig::value_head_dim);
  visit("scale", &AttentionConfig::scale);
  visit("qkv_bias", &AttentionConfig::qkv_bias);
  visit("out_bias", &AttentionConfig::out_bias);
  visit("qk_norm", &AttentionConfig::qk_norm);
  visit("qk_norm_as", &AttentionConfig::qk_norm_as);
  visit("qk_norm_after_rope", &AttentionConfig::qk_norm_after_rope);
  visit("v_norm", &AttentionConfig::v_norm);
  visit("query_scaling", &AttentionConfig::query_scaling);
  visit("query_scaling_from", &AttentionConfig::query_scaling_from);
  visit("query_scaling_ahead", &AttentionConfig::query_scaling_ahead);
  visit("query_power", &AttentionConfig::query_power);
  visit("window", &AttentionConfig::window);
  visit("window_in_blocks", &AttentionConfig::window_in_blocks);
  visit("bidirectional", &AttentionConfig::bidirectional);
  visit("soft_cap", &AttentionConfig::soft_cap);
  visit("sinks", &AttentionConfig::sinks);
  visit("slopes", &AttentionConfig::slopes);
  visit("relative_bias", &AttentionConfig::relative_bias);
  visit("relative_scores", &AttentionConfig::relative_scores);
  visit("kv_of", &AttentionConfig::kv_of);
  visit("output_gate", &AttentionConfig::output_gate);
  visit("head_gate", &AttentionConfig::head_gate);
  visit("gate", &AttentionConfig::gate);
  visit("sums_norm", &AttentionConfig::sums_norm);
}

template <typename Visit>
void members(Visit visit, const ConvolutionConfig* /*of*/) {
  visit("taps", &ConvolutionConfig::taps);
  visit("bias", &ConvolutionConfig::bias);
  visit("activation", &ConvolutionConfig::activation);
}

template <typename Visit>
void members(Visit visit, const DeltaNetConfig* /*of*/) {
  visit("n_key_heads", &DeltaNetConfig::n_key_heads);
  visit("n_value_heads", &DeltaNetConfig::n_value_heads);
  visit("key_head_dim", &DeltaNetConfig::key_head_dim);
  visit("value_head_dim", &DeltaNetConfig::value_head_dim);
  visit("convolution", &DeltaNetConfig::convolution);
  visit("strength", &DeltaNetConfig::strength);
  visit("decays_by_channel", &DeltaNetConfig::decays_by_channel);
  visit("decay_rank", &DeltaNetConfig::decay_rank);
  visit("least_log_decay", &DeltaNetConfig::least_log_decay);
  visit("norm", &DeltaNetConfig::norm);
  visit("gate_rank", &DeltaNetConfig::gate_rank);
  visit("gate", &DeltaNetConfig::gate);
}

template <typename Visit>
void members(Visit visit, const StateSpaceConfig* /*of*/) {
  visit("n_heads", &StateSpaceConfig::n_heads);
  visit("head_dim", &StateSpaceConfig::head_dim);
  visit("n_groups", &StateSpaceConfig::n_groups);
  visit("state_size", &StateSpaceConfig::state_size);
  visit("convolution", &StateSpaceConfig::convolution);
  visit("in_bias", &StateSpaceConfig::in_bias);
  visit("out_bias", &StateSpaceConfig::out_bias);
  visit("norm", &StateSpaceConfig::norm);
  visit("norm_first", &StateSpaceConfig::norm_first);
  visit("gate", &StateSpaceConfig::gate);
  visit("least_step", &StateSpaceConfig::least_step);
  visit("most_step", &StateSpaceConfig::most_step);
}

template <typename Visit>
void members(Visit visit, const ShortConvolutionConfig* /*of*/) {
  visit("convolution", &ShortConvolutionConfig::convolution);
  visit("bias", &ShortConvolutionConfig::bias);
}

template <typename Visit>
void members(Visit visit, const SelectiveScanConfig* /*of*/) {
  visit("channels", &SelectiveScanConfig::channels);
  visit("state_size", &SelectiveScanConfig::state_size);
  visit("step_rank", &SelectiveScanConfig::step_rank);
  visit("convolution", &SelectiveScanConfig::convolution);
  visit("bias", &SelectiveScanConfig::bias);
  visit("norm", &SelectiveScanConfig::norm);
  visit("gate", &SelectiveScanConfig::gate);
}

template <typename Visit>
void members(Visit visit, const LinearAttentionConfig* /*of*/) {
  visit("n_heads", &LinearAttentionConfig::n_heads);
  visit("head_dim", &LinearAttentionConfig::head_dim);
  visit("activation", &LinearAttentionConfig::activation);
  visit("norm", &LinearAttentionConfig::norm);
  visit("gate", &LinearAttentionConfig::gate);
}

template <typename Visit>
void members(Visit visit, const LatentAttentionConfig* /*of*/) {
  visit("n_heads", &LatentAttentionConfig::n_heads);
  visit("q_rank", &LatentAttentionConfig::q_rank);
  visit("kv_rank", &LatentAttentionConfig::kv_rank);
  visit("rope_dim", &LatentAttentionConfig::rope_dim);
  visit("nope_dim", &LatentAttentionConfig::nope_dim);
  visit("value_head_dim", &LatentAttentionConfig::value_head_dim);
  visit("scale", &LatentAttentionConfig::scale);
  visit("bias", &LatentAttentionConfig::bias);
  visit("latent_norm", &LatentAttentionConfig::latent_norm);
  visit("head_gate", &LatentAttentionConfig::head_gate);
}

template <typename Visit>
void members(Visit visit, const RelativeBiasConfig* /*of*/) {
  visit("buckets", &RelativeBiasConfig::buckets);
  visit("max_distance", &RelativeBiasConfig::max_distance);
  visit("bidirectional", &RelativeBiasConfig::bidirectional);
}

template <typename Visit>
void members(Visit visit, const RelativeScoresConfig* /*of*/) {
  visit("rows", &RelativeScoresConfig::rows);
  visit("max_distance", &RelativeScoresConfig::max_distance);
  visit("of_queries", &RelativeScoresConfig::of_queries);
  visit("of_keys", &RelativeScoresConfig::of_keys);
}

template <typename Visit>
void members(Visit visit, const FeedForwardConfig* /*of*/) {
  visit("size", &FeedForwardConfig::size);
  visit("gated", &FeedForwardConfig::gated);
  visit("activation", &FeedForwardConfig::activation);
  visit("gate_limit", &FeedForwardConfig::gate_limit);
  visit("xielu", &FeedForwardConfig::xielu);
  visit("cutoff", &FeedForwardConfig::cutoff);
  visit("bias", &FeedForwardConfig::bias);
  visit("middle_norm", &FeedForwardConfig::middle_norm);
}

template <typename Visit>
void members(Visit visit, const RouterConfig* /*of*/) {
  visit("used", &RouterConfig::used);
  visit("score", &RouterConfig::score);
  visit("margin", &RouterConfig::margin);
  visit("soft_cap", &RouterConfig::soft_cap);
  visit("bias", &RouterConfig::bias);
  visit("correction", &RouterConfig::correction);
  visit("groups", &RouterConfig::groups);
  visit("groups_used", &RouterConfig::groups_used);
  visit("group_score", &RouterConfig::group_score);
  visit("normalized", &RouterConfig::normalized);
  visit("scale", &RouterConfig::scale);
  visit("weighs_input", &RouterConfig::weighs_input);
  visit("expert_scales", &RouterConfig::expert_scales);
}

template <typename Visit>
void members(Visit visit, const ExpertsConfig* /*of*/) {
  visit("count", &ExpertsConfig::count);
  visit("router", &ExpertsConfig::router);
  visit("each", &ExpertsConfig::each);
  visit("shared", &ExpertsConfig::shared);
  visit("shared_gate", &ExpertsConfig::shared_gate);
  visit("identities", &ExpertsConfig::identities);
  visit("deferred", &ExpertsConfig::deferred);
  visit("router_norm", &ExpertsConfig::router_norm);
  visit("norm", &ExpertsConfig::norm);
  visit("norm_after", &ExpertsConfig::norm_after);
  visit("shared_norm_after", &ExpertsConfig::shared_norm_after);
  visit("sum_bias", &ExpertsConfig::sum_bias);
}

template <typename Visit>
void members(Visit visit, const BranchNorms* /*of*/) {
  visit("before", &BranchNorms::before);
  visit("after", &BranchNorms::after);
  visit("stream", &BranchNorms::stream);
}

template <typename Visit>
void members(Visit visit, const LaurelConfig* /*of*/) {
  visit("rank", &LaurelConfig::rank);
  visit("norm", &LaurelConfig::norm);
}

template <typename Visit>
void members(Visit visit, const TokenConvolutionConfig* /*of*/) {
  visit("taps", &TokenConvolutionConfig::taps);
  visit("activation", &TokenConvolutionConfig::activation);
  visit("norm", &TokenConvolutionConfig::norm);
}

template <typename Visit>
void members(Visit visit, const AltUpConfig* /*of*/) {
  visit("streams", &AltUpConfig::streams);
  visit("norm", &AltUpConfig::norm);
}

template <typename Visit>
void members(Visit visit, const CrossAttentionConfig* /*of*/) {
  visit("norms", &CrossAttentionConfig::norms);
}

template <typename Visit>
void members(Visit visit, const AsideConfig* /*of*/) {
  visit("norm", &AsideConfig::norm);
  visit("attention", &AsideConfig::attention);
  visit("ffn_norm", &AsideConfig::ffn_norm);
  visit("ffn", &AsideConfig::ffn);
}

template <typename Visit>
void members(Visit visit, const LayerConfig* /*of*/) {
  visit("name", &LayerConfig::name);
  visit("parallel", &LayerConfig::parallel);
  visit("aside", &LayerConfig::aside);
  visit("attention_norms", &LayerConfig::mixer_norms);
  visit("laurel", &LayerConfig::laurel);
  visit("cross_attention", &LayerConfig::cross_attention);
  visit("ffn_norms", &LayerConfig::ffn_norms);
  visit("ffn", &LayerConfig::ffn);
  visit("experts", &LayerConfig::experts);
  visit("token_convolution", &LayerConfig::token_convolution);
  visit("scaled", &LayerConfig::scaled);
}

template <typename Visit>
void members(Visit visit, const EmbeddingConfig* /*of*/) {
  visit("shared", &EmbeddingConfig::shared);
  visit("multiplier", &EmbeddingConfig::multiplier);
  visit("positions", &EmbeddingConfig::positions);
  visit("offset", &EmbeddingConfig::offset);
  visit("segments", &EmbeddingConfig::segments);
  visit("size", &EmbeddingConfig::size);
  visit("norm", &EmbeddingConfig::norm);
}

template <typename Visit>
void members(Visit visit, const LayerStatesConfig* /*of*/) {
  visit("after", &LayerStatesConfig::after);
  visit("norm", &LayerStatesConfig::norm);
  visit("norm_of_each", &LayerStatesConfig::norm_of_each);
  visit("bias", &LayerStatesConfig::bias);
}

template <typename Visit>
void members(Visit visit, const HiddenInputConfig* /*of*/) {
  visit("norm", &HiddenInputConfig::norm);
  visit("before_output_norm", &HiddenInputConfig::before_output_norm);
  visit("layer_states", &HiddenInputConfig::layer_states);
  visit("of_decoder", &HiddenInputConfig::of_decoder);
  visit("side_by_side", &HiddenInputConfig::side_by_side);
  visit("normed_stream", &HiddenInputConfig::normed_stream);
}

template <typename Visit>
void members(Visit visit, const LayerInputsConfig* /*of*/) {
  visit("size", &LayerInputsConfig::size);
  visit("table", &LayerInputsConfig::table);
  visit("multiplier", &LayerInputsConfig::multiplier);
  visit("norm", &LayerInputsConfig::norm);
  visit("activation", &LayerInputsConfig::activation);
  visit("norm_after", &LayerInputsConfig::norm_after);
  visit("scaled", &LayerInputsConfig::scaled);
}

template <typename Visit>
void members(Visit visit, const DenseConfig* /*of*/) {
  visit("size", &DenseConfig::size);
  visit("bias", &DenseConfig::bias);
  visit("activation", &DenseConfig::activation);
  visit("norm", &DenseConfig::norm);
}

template <typename Visit>
void members(Visit visit, const OutputConfig* /*of*/) {
  visit("norm", &OutputConfig::norm);
  visit("none", &OutputConfig::none);
  visit("shared", &OutputConfig::shared);
  visit("tied", &OutputConfig::tied);
  visit("bias", &OutputConfig::bias);
  visit("tokens", &OutputConfig::tokens);
  visit("soft_cap", &OutputConfig::soft_cap);
  visit("dense", &OutputConfig::dense);
}

template <typename Visit>
void members(Visit visit, const PoolingConfig* /*of*/) {
  visit("mode", &PoolingConfig::mode);
  visit("dense", &PoolingConfig::dense);
  visit("dense_before", &PoolingConfig::dense_before);
  visit("normalize", &PoolingConfig::normalize);
  visit("scores", &PoolingConfig::scores);
  visit("sigmoid", &PoolingConfig::sigmoid);
  visit("max_tokens", &PoolingConfig::max_tokens);
  visit("prompt", &PoolingConfig::prompt);
  visit("start", &PoolingConfig::start);
}

template <typename Visit>
void members(Visit visit, const FormatRule* /*of*/) {
  visit("tensor", &FormatRule::tensor);
  visit("type", &FormatRule::format);
  visit("first_layer", &FormatRule::first_layer);
  visit("n_layers", &FormatRule::n_layers);
}

template <typename Visit>
void members(Visit visit, const ModelConfig* /*of*/) {
  visit("hidden", &ModelConfig::hidden);
  visit("vocab", &ModelConfig::vocab);
  visit("max_context", &ModelConfig::max_context);
  visit("context_end", &ModelConfig::context_end);
  visit("embedding", &ModelConfig::embedding);
  visit("hidden_input", &ModelConfig::hidden_input);
  visit("layer_inputs", &ModelConfig::layer_inputs);
  visit("altup", &ModelConfig::altup);
  visit("ropes", &ModelConfig::ropes);
  visit("layer_kinds", &ModelConfig::layer_kinds);
  visit("output", &ModelConfig::output);
  visit("pooling", &ModelConfig::pooling);
  visit("weights", &ModelConfig::weight_format);
  visit("formats", &ModelConfig::formats);
  visit("activation_bits", &ModelConfig::activation_bits);
  visit("rotated", &ModelConfig::rotated);
  visit("values_rotated", &ModelConfig::values_rotated);
  visit("embedding_type", &ModelConfig::embedding_format);
  visit("output_type", &ModelConfig::output_format);
}

// Members that config_to_json() writes by itself: those that tell entries of another list by name,
// a layer's mixers, each called what its kind is called (in their order), and other stacks.
template <typename T>
inline constexpr std::array<const char*, 0> kApart = {};
template <>
inline constexpr std::array kApart<AttentionConfig> = {"rope"};
template <>
inline constexpr std::array kApart<LatentAttentionConfig> = {"rope"};
template <>
inline constexpr std::array kApart<LayerConfig> = {
    "attention",         "latent_attention", "delta_net",       "state_space",
    "short_convolution", "selective_scan",   "linear_attention"};
template <>
inline constexpr std::array kApart<ModelConfig> = {"layers", "encoder", "predictors", "down_type"};

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsValue = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

template <typename T>
json write(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return Names<T>::kAll[static_cast<size_t>(value)];
  } else if constexpr (kIsValue<T>) {
    return value;
  } else if constexpr (kIsOptional<T>) {
    return value ? write(*value) : json();
  } else if constexpr (kIsVector<T>) {
    json list = json::array();
    for (const auto& element : value) list.push_back(write(element));
    return list;
  } else {
    json object = json::object();
    const T untouched;
    members(
        [&](const char* name, auto member) {
          if (value.*member != untouched.*member) object[name] = write(value.*member);
        },
        &value);
    return object;
  }
}

template <typename T>
void read(const JsonView& view, T& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& names = Names<T>::kAll;
    const auto name = view.as<std::string>();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) view.fail("is " + in_quotes(name) + ", which is unknown");
    value = static_cast<T>(found - names.begin());
  } else if constexpr (kIsValue<T>) {
    value = view.as<T>();
  } else if constexpr (kIsOptional<T>) {
    read(view, value.emplace());
  } else if constexpr (kIsVector<T>) {
    for (const JsonView& element : view.elements()) read(element, value.emplace_back());
  } else {
    std::vector<std::string_view> known(kApart<T>.begin(), kApart<T>.end());
    members(
        [&](const char* name, auto member) {
          known.emplace_back(name);
          if (const auto found = view.find(name)) read(*found, value.*member);
        },
        &value);
    view.allow_only(known);
  }
}

// The place of the entry with this name.
template <typename Named>
size_t index_of(const std::vector<Named>& list, const JsonView& name) {
  const auto text = name.as<std::string>();
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Named& entry) { return entry.name == text; });
  if (found == list.end()) name.fail("is " + in_quotes(text) + ", which the model does not have");
  return static_cast<size_t>(found - list.begin());
}

// Of kinds that rotate.
template <typename Attention>
requires requires(Attention& attention) { attention.rope; }
void write_apart(const Attention& attention, const ModelConfig& config, json& object) {
  if (attention.rope) object["rope"] = config.ropes[*attention.rope].name;
}
template <typename Kind>
void write_apart(const Kind& /*mixer*/, const ModelConfig& /*config*/, json& /*object*/) {}

template <typename Attention>
requires requires(Attention& attention) { attention.rope; }
void read_apart(const JsonView& object, const ModelConfig& config, Attention& attention) {
  if (const auto rope = object.find("rope")) attention.rope = index_of(config.ropes, *rope);
}
template <typename Kind>
void read_apart(const JsonView& /*object*/, const ModelConfig& /*config*/, Kind& /*mixer*/) {}

void write_mixer(const Mixer& mixer, const ModelConfig& config, json& layer) {
  json& object = layer[kApart<LayerConfig>[mixer.index()]];
  std::visit(
      [&](const auto& kind) {
        object = write(kind);
        write_apart(kind, config, object);
      },
      mixer);
}

// The mixer of the kind that is the n-th of all.
template <size_t kIndex = 0>
Mixer read_mixer(size_t n, const JsonView& object, const ModelConfig& config) {
  if constexpr (kIndex + 1 < std::variant_size_v<Mixer>) {
    if (n > kIndex) return read_mixer<kIndex + 1>(n, object, config);
  }
  std::variant_alternative_t<kIndex, Mixer> mixer;
  read(object, mixer);
  read_apart(object, config, mixer);
  return mixer;
}

std::vector<Mixer> read_mixers(const JsonView& layer, const ModelConfig& config) {
  std::vector<Mixer> mixers;
  for (size_t n = 0; n < kApart<LayerConfig>.size(); ++n) {
    if (const auto mixer = layer.find(kApart<LayerConfig>[n])) {
      mixers.push_back(read_mixer(n, *mixer, config));
    }
  }
  if (mixers.empty()) layer.fail("has no mixer, such as \"attention\"");
  return mixers;
}

ModelConfig read_model(const JsonView& model);

// One that belongs to another.
ModelConfig read_stack(const JsonView& stack) {
  for (const char* name : {"encoder", "predictors"}) {
    if (stack.find(name)) stack.fail("has " + in_quotes(name) + " itself");
  }
  return read_model(stack);
}

ModelConfig read_model(const JsonView& model) {
  ModelConfig config;
  read(model, config);
  if (const auto down = model.find("down_type")) {  // of files before there were `formats`
    WeightFormat format{};
    read(*down, format);
    for (const TensorKind kind : kDownKinds) config.formats.push_back({kind, format});
  }
  const std::vector<JsonView> kinds = model.member("layer_kinds").elements();
  for (size_t n = 0; n < kinds.size(); ++n) {
    LayerConfig& layer = config.layer_kinds[n];
    layer.mixers = read_mixers(kinds[n], config);
    if (layer.aside) {
      const JsonView aside = kinds[n].member("aside");
      read_apart(aside.member("attention"), config, layer.aside->attention);
    }
  }
  for (const JsonView& kind : model.member("layers").elements()) {
    config.layers.push_back(index_of(config.layer_kinds, kind));
  }
  if (const auto encoder = model.find("encoder")) {
    config.encoder = std::make_shared<const ModelConfig>(read_stack(*encoder));
  }
  if (const auto predictors = model.find("predictors")) {
    for (const JsonView& predictor : predictors->elements()) {
      config.predictors.push_back(read_stack(predictor));
    }
  }
  return config;
}

}  // namespace

json config_to_json(const ModelConfig& config) {
  json model = write(config);
  for (size_t n = 0; n < config.layer_kinds.size(); ++n) {
    const LayerConfig& layer = config.layer_kinds[n];
    json& object = model["layer_kinds"][n];
    for (const Mixer& mixer : layer.mixers) write_mixer(mixer, config, object);
    if (layer.aside) {
      write_apart(layer.aside->attention, config, object["aside"]["attention"]);
    }
  }
  for (const size_t kind : config.layers) {
    model["layers"].push_back(config.layer_kinds[kind].name);
  }
  if (config.encoder) model["encoder"] = config_to_json(*config.encoder);
  for (const ModelConfig& predictor : config.predictors) {
    model["predictors"].push_back(config_to_json(predictor));
  }
  return model;
}

ModelConfig config_from_json(const json& json, std::string_view where) {
  constexpr const char* kAdvice = "convert the checkpoint again";
  ModelConfig config = read_model(JsonView(json, where, kAdvice));
  try {
    validate(config, where);
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + "; " + kAdvice);
  }
  return config;
}

}  // namespace faststream
