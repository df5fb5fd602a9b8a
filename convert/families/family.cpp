#include "convert/families/family.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

struct Family {
  std::string_view architecture;  ///< in config.json's "architectures"
  std::string_view model_type;
  FamilyModel (*describe)(const FamilySource&);
};

#define FASTSTREAM_FAMILY(architecture, model_type, describe) {architecture, model_type, describe},
constexpr auto kFamilies = std::to_array<Family>({
#include "convert/families/table.inc"
});
#undef FASTSTREAM_FAMILY

const Family* find_type(const JsonView& config) {
  const auto type = config.get<std::string>("model_type", "");
  const auto* const found = std::ranges::find(kFamilies, type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : found;
}

// Of an architecture without a head, such as "Qwen3Model" or "Gemma3TextModel", that with one.
const Family* find_headless(std::string_view architecture) {
  for (const std::string_view ending : {"Model", "Text"}) {
    if (architecture.ends_with(ending)) {
      architecture.remove_suffix(ending.size());
    } else if (ending == "Model") {
      return nullptr;
    }
  }
  const std::string with_head = std::string(architecture) + "For";
  const auto* const found = std::ranges::find_if(
      kFamilies, [&](const Family& family) { return family.architecture.starts_with(with_head); });
  return found == kFamilies.end() ? nullptr : found;
}

// Of a decoder that scores labels, such as "Qwen3ForSequenceClassification", that with an output
// matrix.
const Family* find_decoder(std::string_view architecture) {
  constexpr std::string_view kScoresLabels = "ForSequenceClassification";
  if (!architecture.ends_with(kScoresLabels)) return nullptr;
  architecture.remove_suffix(kScoresLabels.size());
  for (const char* ending : {"ForCausalLM", "LMHeadModel"}) {
    const std::string with_output = std::string(architecture) + ending;
    const auto* const found = std::ranges::find(kFamilies, with_output, &Family::architecture);
    if (found != kFamilies.end()) return found;
  }
  return nullptr;
}

enum class Head { own, none, labels };
struct Found {
  const Family& family;
  Head head = Head::own;  ///< of the model, which may not be the family's
};

Found find_family(const JsonView& config) {
  const auto architectures = config.find("architectures");
  if (architectures && !architectures->elements().empty()) {
    const auto name = architectures->elements().front().as<std::string>();
    for (const Family& family : kFamilies) {
      if (name == family.architecture) return {family};
    }
    if (const Family* family = find_headless(name)) return {*family, Head::none};
    if (const Family* family = find_decoder(name)) return {*family, Head::labels};
    config.fail("models of the architecture " + in_quotes(name) +
                " are not supported (README.md lists those that are)");
  }
  if (const Family* family = find_type(config)) return {*family};
  config.fail("models of the type " + in_quotes(config.get<std::string>("model_type")) +
              " are not supported (README.md lists those that are)");
}

struct NamedActivation {
  std::string_view name;
  Activation activation;
};

// transformers/activations.py.
constexpr auto kActivations =
    std::to_array<NamedActivation>({{"silu", Activation::silu},
                                    {"swish", Activation::silu},
                                    {"gelu", Activation::gelu},
                                    {"gelu_python", Activation::gelu},
                                    {"gelu_new", Activation::gelu_tanh},
                                    {"gelu_fast", Activation::gelu_tanh},
                                    {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                    {"gelu_python_tanh", Activation::gelu_tanh},
                                    {"relu", Activation::relu},
                                    {"relu2", Activation::relu_squared}});

// Dynamic scaling is made for texts longer than those of the training.
void lengthen_context(ModelConfig& model) {
  for (const RopeConfig& rope : model.ropes) {
    const double reach = rope.dynamic_factor * static_cast<double>(rope.original_max_context);
    model.max_context =
        std::max(model.max_context, static_cast<int64_t>(std::min<double>(reach, kMaxContext)));
  }
}

}  // namespace

FamilyModel describe_family(const FamilySource& source, std::string_view where) {
  const auto [family, head] = find_family(source.config);
  FamilyModel model = family.describe(source);
  if (head != Head::own && model.config.encoder) {
    source.config.fail("encoder-decoders without an output matrix are not supported");
  }
  if (head != Head::own) remove_output(model);
  if (head == Head::labels) {
    score_labels(model, source.config, {.mode = Pooling::last}, {}, "score", false);
  }
  model.name = family.model_type;
  lengthen_context(model.config);
  validate(model.config, where);
  return model;
}

int64_t count_in(const JsonView& config, std::string_view key, int64_t most) {
  return config.member(key).as<int64_t>(1, most);
}

int64_t count_in(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise) {
  const auto found = config.find(key);
  return found ? found->as<int64_t>(1, most) : otherwise;
}

int64_t count_or_null_in(const JsonView& config, std::string_view key, int64_t most,
                         int64_t otherwise) {
  const bool is_null = config.has(key) && !config.find(key);
  return is_null ? 0 : count_in(config, key, most, otherwise);
}

int64_t number_of(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise) {
  const auto found = config.find(key);
  return found ? found->as<int64_t>(0, most) : otherwise;
}

int64_t head_dim_of(const JsonView& config, const PlainShape& shape) {
  if (shape.hidden % shape.n_heads == 0) return shape.hidden / shape.n_heads;
  config.fail(
      "\"hidden_size\" is not a multiple of \"num_attention_heads\" and there is no \"head_dim\"");
}

std::vector<int64_t> counts_of_layers(const JsonView& config, std::string_view key,
                                      int64_t n_layers, int64_t most, int64_t otherwise) {
  const auto found = config.find(key);
  if (!found || !found->value().is_array()) {
    const int64_t count =
        otherwise == 0 ? count_in(config, key, most) : count_in(config, key, most, otherwise);
    return std::vector(static_cast<size_t>(n_layers), count);
  }
  std::vector<int64_t> counts = found->integers<int64_t>(1, most);
  if (static_cast<int64_t>(counts.size()) < n_layers) found->fail("has fewer entries than layers");
  return counts;
}

std::string_view key_in(const JsonView& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (config.find(key)) return key;
  }
  return *(keys.end() - 1);
}

float number_in(const JsonView& config, std::string_view key, double otherwise) {
  const auto number = static_cast<float>(config.get(key, otherwise));
  if (!std::isfinite(number)) config.member(key).fail("is too large, or no number");
  return number;
}

Activation activation_in(const JsonView& config, std::string_view key, std::string_view otherwise) {
  return activation_named(config, config.get<std::string>(key, std::string(otherwise)));
}

std::optional<Activation> find_activation(std::string_view name) {
  for (const NamedActivation& known : kActivations) {
    if (name == known.name) return known.activation;
  }
  return std::nullopt;
}

Activation activation_named(const JsonView& config, std::string_view name) {
  if (const auto known = find_activation(name)) return *known;
  config.fail("asks for the activation " + in_quotes(name) + ", which is not supported");
}

PlainShape shape_in(const JsonView& config, const PlainShape& otherwise) {
  const auto size = [&](std::string_view key, int64_t most, int64_t by_default) {
    return by_default == 0 ? count_in(config, key, most) : count_in(config, key, most, by_default);
  };
  PlainShape shape = otherwise;
  shape.n_layers = size("num_hidden_layers", kMaxLayers, otherwise.n_layers);
  shape.hidden = size("hidden_size", kMaxSize, otherwise.hidden);
  shape.n_heads = size("num_attention_heads", kMaxHeads, otherwise.n_heads);
  shape.n_kv_heads =
      count_or_null_in(config, "num_key_value_heads", kMaxHeads, otherwise.n_kv_heads);
  if (shape.n_kv_heads == 0) shape.n_kv_heads = shape.n_heads;
  shape.head_dim = count_or_null_in(config, "head_dim", kMaxHeadDim, otherwise.head_dim);
  if (shape.head_dim == 0) shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden =
      counts_of_layers(config, "intermediate_size", shape.n_layers, kMaxSize, otherwise.ffn_hidden)
          .front();
  shape.vocab = size("vocab_size", kMaxSize, otherwise.vocab);
  shape.max_context = size("max_position_embeddings", kMaxContext, otherwise.max_context);
  shape.norm_eps = number_in(config, "rms_norm_eps", otherwise.norm_eps);
  return shape;
}

ModelConfig plain_decoder_in(const JsonView& config, const PlainShape& shape,
                             const FamilyDefaults& defaults) {
  ModelConfig model = plain_decoder(shape);
  const RopeShape rope{.head_dim = shape.head_dim,
                       .max_context = shape.max_context,
                       .theta = shape.rope_theta,
                       .rotated_share = defaults.rotated_share};
  model.ropes = {rope_from_hf(config, rope, defaults.rope_of)};
  model.layer_kinds[0].ffn.activation = activation_in(config, "hidden_act", "silu");
  model.output.tied = config.get("tie_word_embeddings", defaults.tied);
  return model;
}

NormConfig layer_norm_in(const JsonView& config, std::string_view key, bool bias) {
  return {.kind = NormKind::layer, .eps = number_in(config, key, 1e-5), .bias = bias};
}

void set_attention_bias(LayerConfig& layer, bool bias) {
  layer.attention().qkv_bias = layer.attention().out_bias = bias;
}

void set_plain_ffn(LayerConfig& layer, Activation activation, bool bias) {
  layer.ffn.gated = false;
  layer.ffn.activation = activation;
  layer.ffn.bias = bias;
}

void set_gate_limit(FeedForwardConfig& ffn, float limit) {
  if (limit == 0) return;
  ffn.activation = Activation::silu_clamped;
  ffn.gate_limit = limit;
}

ExpertsConfig& use_experts(LayerConfig& layer, const JsonView& config, int64_t count,
                           int64_t used) {
  ExpertsConfig& experts = layer.experts.emplace();
  experts.count = count;
  const std::string_view key = key_in(config, {"num_experts_per_token", "num_experts_per_tok"});
  experts.router.used = static_cast<int32_t>(count_in(config, key, kMaxExperts, used));
  experts.each = layer.ffn;
  layer.ffn.size = 0;
  return experts;
}

void use_joined_experts(Modules& modules, const Checkpoint& weights, const std::string& begin) {
  const std::string up = modules.experts + "gate_up_proj";
  modules.experts_are_tensors = std::ranges::any_of(weights.tensors(), [&](const auto& tensor) {
    return tensor.first.starts_with(begin) && tensor.first.ends_with("." + up);
  });
  modules.experts_gate_up.clear();
  modules.experts_down.clear();
  if (!modules.experts_are_tensors) return;
  modules.experts_gate_up = {up};
  modules.experts_down = modules.experts + "down_proj";
}

void set_norms(ModelConfig& model, const NormConfig& norm) {
  for (LayerConfig& layer : model.layer_kinds) {
    layer.mixer_norms.before = norm;
    layer.ffn_norms.before = norm;
  }
  model.output.norm = norm;
}

void set_layers(ModelConfig& model, std::vector<LayerConfig> layers) {
  std::vector<LayerConfig> kinds;
  model.layers.clear();
  for (LayerConfig& layer : layers) {
    const auto known = std::ranges::find(kinds, layer);
    model.layers.push_back(static_cast<size_t>(known - kinds.begin()));
    if (known == kinds.end()) kinds.push_back(std::move(layer));
  }
  std::map<std::string, int> of_name;
  for (LayerConfig& kind : kinds) {
    const int n = ++of_name[kind.name];
    if (n > 1) kind.name += " (" + std::to_string(n) + ")";
  }
  model.layer_kinds = std::move(kinds);
}

void change_layers(ModelConfig& model, const std::function<void(int64_t n, LayerConfig&)>& change) {
  std::vector<LayerConfig> layers;
  for (int64_t n = 0; n < model.n_layers(); ++n) {
    layers.push_back(model.layer(n));
    change(n, layers.back());
  }
  set_layers(model, std::move(layers));
}

ModelConfig post_norm_encoder(const PlainShape& shape, const NormConfig& norm,
                              Activation activation) {
  ModelConfig model = plain_decoder(shape);
  remove_rotation(model);
  model.embedding.norm = norm;
  model.output = {.norm = {}, .none = true};
  LayerConfig& layer = model.layer_kinds[0];
  layer.mixer_norms = layer.ffn_norms = {.before = {}, .after = {}, .stream = norm};
  layer.attention().bidirectional = true;
  set_attention_bias(layer, true);
  set_plain_ffn(layer, activation, true);
  return model;
}

void remove_output(FamilyModel& model) {
  model.config.output = {.norm = model.config.output.norm, .none = true};
  model.config.predictors.clear();
  Modules& m = model.modules;
  m.unused.push_back(m.output + ".weight");
  for (const DenseModules& each : m.dense) leave_out(m, {each.product, each.norm});
  m.dense.clear();
}

bool is_classifier(const JsonView& config) {
  const auto architectures = config.find("architectures");
  return architectures && !architectures->elements().empty() &&
         architectures->elements().front().as<std::string>().ends_with("ForSequenceClassification");
}

bool is_sigmoid(const JsonView& config, std::string_view name) {
  if (name.ends_with(".Sigmoid")) return true;
  if (name.ends_with(".Identity")) return false;
  config.fail("asks for the activation " + in_quotes(name) + " of scores, which is not supported");
}

void score_labels(FamilyModel& model, const JsonView& config, PoolingConfig pooling,
                  std::vector<DenseModules> heads, const std::string& scores, bool bias) {
  const auto labels = config.find("id2label");
  constexpr int64_t kUnnamedLabels = 2;
  const int64_t count = labels && labels->value().is_object()
                            ? static_cast<int64_t>(labels->value().size())
                            : count_in(config, "num_labels", kMaxSize, kUnnamedLabels);
  pooling.dense.push_back({.size = count, .bias = bias});
  pooling.scores = true;
  // As sentence-transformers' CrossEncoder, which has named the member in two ways.
  auto activation = config.get<std::string>("sbert_ce_default_activation_function", "");
  if (const auto own = config.find("sentence_transformers")) {
    activation = own->get<std::string>("activation_fn", activation);
  }
  pooling.sigmoid = activation.empty() ? count == 1 : is_sigmoid(config, activation);
  heads.push_back({.product = scores});
  model.config.pooling = std::move(pooling);
  model.modules.dense = std::move(heads);
}

void score_labels(FamilyModel& model, const JsonView& config, const LabelHead& head) {
  const DenseConfig dense{.size = model.config.hidden, .bias = true, .activation = head.activation};
  score_labels(model, config,
               {.mode = head.pooling, .dense = {dense}, .dense_before = head.pools_late ? 1 : 0},
               {{.product = head.dense}}, head.scores);
}

void score_labels_of_text(FamilyModel& model, const JsonView& config) {
  remove_output(model);
  score_labels(model, config,
               {.dense = "classification_head.dense",
                .scores = "classification_head.out_proj",
                .pooling = Pooling::last});
  model.config.pooling->start = static_cast<int32_t>(
      number_of(config, "decoder_start_token_id", model.config.vocab - 1, model.answers.start));
}

void begin_after_padding(ModelConfig& model, const JsonView& config) {
  EmbeddingConfig& embedding = model.embedding;
  const auto padding = config.find("pad_token_id");
  embedding.offset = (padding ? padding->as<int64_t>(-1, kMaxContext) : 1) + 1;
  model.max_context = embedding.positions - embedding.offset;
}

void use_heads_of_roberta(FamilyModel& model, const JsonView& config) {
  leave_out(model.modules, {"pooler.dense"});
  if (is_classifier(config)) {
    score_labels(model, config, {.dense = "classifier.dense", .scores = "classifier.out_proj"});
    return;
  }
  leave_out(model.modules, {"lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"});
  model.modules.unused.emplace_back("lm_head.bias");
}

void name_as_bert(Modules& modules) {
  modules.embedding = "embeddings.word_embeddings";
  modules.positions = "embeddings.position_embeddings";
  modules.segments = "embeddings.token_type_embeddings";
  modules.embedding_norm = "embeddings.LayerNorm";
  modules.layers = "encoder.layer.";
  modules.qkv = {"attention.self.query", "attention.self.key", "attention.self.value"};
  modules.attention_out = "attention.output.dense";
  modules.attention_stream_norm = "attention.output.LayerNorm";
  modules.gate_up = {"intermediate.dense"};
  modules.down = "output.dense";
  modules.ffn_stream_norm = "output.LayerNorm";
  modules.unused = {".position_ids"};
}

void name_as_rotated_bert(Modules& modules) {
  modules.embedding_norm = "embeddings.LayerNorm";
  modules.layers = "layers.";
  modules.qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  modules.attention_out = "self_attn.o_proj";
  modules.attention_stream_norm = "post_attention_layernorm";
  modules.ffn_stream_norm = "post_mlp_layernorm";
}

void name_as_flash_bert(Modules& modules) {
  modules.embedding_norm = "emb_ln";
  modules.layers = "encoder.layers.";
  modules.qkv = {"mixer.Wqkv"};
  modules.attention_out = "mixer.out_proj";
  modules.attention_stream_norm = "norm1";
  modules.gate_up = {"mlp.fc1"};
  modules.down = "mlp.fc2";
  modules.ffn_stream_norm = "norm2";
}

bool has_modules(const Checkpoint& weights, std::string_view begin) {
  const std::string after_dot = "." + std::string(begin);
  return std::ranges::any_of(weights.tensors(), [&](const auto& tensor) {
    return tensor.first.starts_with(begin) || tensor.first.find(after_dot) != std::string::npos;
  });
}

std::vector<bool> flags_in(const JsonView& list, int64_t n_layers) {
  std::vector<bool> flags;
  for (const int64_t flag : list.integers<int64_t>(0, 1)) flags.push_back(flag == 1);
  if (flags.size() != static_cast<size_t>(n_layers)) {
    list.fail("has " + std::to_string(flags.size()) + " entries for " + std::to_string(n_layers) +
              " layers");
  }
  return flags;
}

std::vector<bool> rotating_layers(const JsonView& config, const std::optional<JsonView>& list,
                                  int64_t n_layers) {
  if (list) return flags_in(*list, n_layers);
  std::vector<bool> rotates;
  const int64_t interval = count_in(config, "no_rope_layer_interval", kMaxLayers, 4);
  for (int64_t n = 0; n < n_layers; ++n) rotates.push_back((n + 1) % interval != 0);
  return rotates;
}

PlainShape gpt2_shape_in(const JsonView& config) {
  PlainShape shape;
  shape.n_layers = count_in(config, "n_layer", kMaxLayers);
  shape.hidden = count_in(config, "n_embd");
  shape.n_heads = shape.n_kv_heads = count_in(config, "n_head", kMaxHeads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "n_inner", kMaxSize, 4 * shape.hidden);
  shape.vocab = count_in(config, "vocab_size");
  return shape;
}

void end_context(ModelConfig& model, int64_t tokens, ContextEnd why) {
  if (tokens >= model.max_context) return;
  model.max_context = tokens;
  model.context_end = why;
}

void remove_rotation(ModelConfig& model) {
  for (LayerConfig& layer : model.layer_kinds) layer.attention().rope.reset();
  model.ropes.clear();
}

int64_t window_in(const JsonView& config, int64_t otherwise) {
  return count_or_null_in(config, "sliding_window", kMaxContext, otherwise);
}

std::vector<std::string> layer_types_in(const JsonView& config, int64_t n_layers,
                                        std::initializer_list<std::string_view> known,
                                        const std::function<int(int64_t)>& otherwise,
                                        std::string_view key) {
  std::vector<std::string> types;
  const auto list = config.find(key);
  if (!list) {
    for (int64_t n = 0; n < n_layers; ++n) types.emplace_back(known.begin()[otherwise(n)]);
    return types;
  }
  for (const JsonView& type : list->elements()) {
    types.push_back(type.as<std::string>());
    if (std::ranges::find(known, types.back()) == known.end()) {
      type.fail("is " + in_quotes(types.back()) + ", a type of layers that is not supported");
    }
  }
  if (types.size() != static_cast<size_t>(n_layers)) {
    list->fail("has " + std::to_string(types.size()) + " entries for " + std::to_string(n_layers) +
               " layers");
  }
  return types;
}

std::vector<bool> windowed_in(const JsonView& config, int64_t n_layers,
                              const std::function<bool(int64_t)>& otherwise) {
  constexpr std::string_view kWindowed = "sliding_attention";
  std::vector<bool> windowed;
  for (const std::string& type : layer_types_in(config, n_layers, {kWindowed, "full_attention"},
                                                [&](int64_t n) { return otherwise(n) ? 0 : 1; })) {
    windowed.push_back(type == kWindowed);
  }
  return windowed;
}

void set_windows(ModelConfig& model, const JsonView& config, int64_t window,
                 const std::function<bool(int64_t)>& otherwise) {
  if (window == 0) return;
  const std::vector<bool> windowed = windowed_in(config, model.n_layers(), otherwise);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (!windowed[static_cast<size_t>(n)]) return;
    layer.name = "windowed";
    layer.attention().window = window;
  });
}

RopeConfig rope_of_windows_in(const JsonView& config, const RopeShape& shape) {
  constexpr std::string_view kType = "sliding_attention";
  const auto parameters = config.find("rope_parameters");
  if (parameters && parameters->find(kType)) return rope_from_hf(config, shape, kType);
  RopeConfig rope;
  rope.name = kType;
  const double rotated = shape.rotated_share * static_cast<double>(shape.head_dim);
  rope.frequencies = plain_frequencies(shape.theta, static_cast<int64_t>(rotated));
  return rope;
}

void set_rope_of_windows(ModelConfig& model, const JsonView& config, double theta,
                         double rotated_share) {
  RopeConfig rope = rope_of_windows_in(config, {.head_dim = model.layer(0).attention().head_dim,
                                                .max_context = model.max_context,
                                                .theta = theta,
                                                .rotated_share = rotated_share});
  for (LayerConfig& layer : model.layer_kinds) {
    if (layer.attention().window > 0) layer.attention().rope = model.ropes.size();
  }
  model.ropes.push_back(std::move(rope));
}

void set_ropes_of_types(ModelConfig& model, const JsonView& config,
                        const nlohmann::json& otherwise) {
  nlohmann::json said = config.value();
  if (!config.find("rope_parameters")) said["rope_parameters"] = otherwise;
  const JsonView source = config.with(said);
  const JsonView ropes = source.member("rope_parameters");
  model.ropes.clear();
  std::map<std::string_view, size_t> of_types;
  for (LayerConfig& layer : model.layer_kinds) {
    AttentionConfig& attention = layer.attention();
    const std::string_view type = attention.window > 0 ? "sliding_attention" : "full_attention";
    attention.rope.reset();
    if (!ropes.has(type)) ropes.fail("says nothing of layers of the type " + in_quotes(type));
    if (!ropes.find(type)) continue;
    const auto [known, is_new] = of_types.emplace(type, model.ropes.size());
    attention.rope = known->second;
    if (!is_new) continue;
    model.ropes.push_back(rope_from_hf(
        source, {.head_dim = attention.head_dim, .max_context = model.max_context}, type));
  }
}

void refuse_if(const JsonView& config, std::string_view key, std::string_view what) {
  if (config.get(key, false)) {
    config.fail(in_quotes(key) + " asks for " + std::string(what) + ", which is not supported");
  }
}

void refuse_other(const JsonView& config, std::string_view key, const nlohmann::json& known) {
  const auto found = config.find(key);
  if (!found || found->value() == known) return;
  const std::string value = found->value().dump();
  constexpr size_t kMostShown = 64;
  found->fail((value.size() <= kMostShown ? "is " + printable(value) : "has a value") +
              ", which is not supported; only " + known.dump() + " is");
}

void use_predicting_layers(FamilyModel& model, const Checkpoint& weights, int64_t count) {
  add_predicting_layers(model.config.n_layers(), count, weights, model.modules, model.config,
                        model.predictors);
}

void refuse_if_present(const JsonView& config, std::string_view key, std::string_view what) {
  if (config.find(key)) {
    config.fail(in_quotes(key) + " asks for " + std::string(what) + ", which are not supported");
  }
}

float inverse_root(double size) { return static_cast<float>(1 / std::sqrt(size)); }

std::vector<float> alibi_slopes(int64_t n_heads) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n_heads)));
  std::vector<float> slopes;
  for (int64_t i = 1; i <= whole; ++i) {
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(whole))));
  }
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < n_heads; i += 2) {
    slopes.push_back(
        static_cast<float>(std::exp2(-4.0 * static_cast<double>(i) / static_cast<double>(whole))));
  }
  return slopes;
}

}  // namespace faststream::convert
