#include "convert/families/family.h"

#include <array>
#include <cmath>
#include <optional>

#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

struct Family {
  std::string_view architecture;  ///< in config.json's "architectures"
  std::string_view model_type;
  FamilyModel (*describe)(const FamilySource&);
};

constexpr auto kFamilies = std::to_array<Family>({
    {"LlamaForCausalLM", "llama", describe_llama},
});

const Family& find_family(const JsonView& config) {
  const auto architectures = config.find("architectures");
  if (architectures && !architectures->elements().empty()) {
    const auto name = architectures->elements().front().as<std::string>();
    for (const Family& family : kFamilies) {
      if (name == family.architecture) return family;
    }
    config.fail("models of the architecture " + in_quotes(name) +
                " are not supported (README.md lists those that are)");
  }
  const auto type = config.get<std::string>("model_type", "");
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family;
  }
  config.fail("models of the type " + in_quotes(type) +
              " are not supported (README.md lists those that are)");
}

// But for MXFP4, whose tensors are read like any others.
void refuse_quantized(const JsonView& config) {
  const auto quantization = config.find("quantization_config");
  if (!quantization) return;
  const auto method = quantization->get<std::string>("quant_method", "");
  if (method == "mxfp4") return;
  config.fail("the checkpoint is already quantized" +
              (method.empty() ? "" : " with " + in_quotes(method)) +
              " (\"quantization_config\"); convert the original one");
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

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxContext = int64_t{1} << 28;

}  // namespace

FamilyModel describe_family(const FamilySource& source, std::string_view where) {
  const Family& family = find_family(source.config);
  refuse_quantized(source.config);
  FamilyModel model = family.describe(source);
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

int64_t head_dim_of(const JsonView& config, const PlainShape& shape) {
  if (shape.hidden % shape.n_heads == 0) return shape.hidden / shape.n_heads;
  config.fail(
      "\"hidden_size\" is not a multiple of \"num_attention_heads\" and there is no \"head_dim\"");
}

PlainShape shape_in(const JsonView& config) {
  PlainShape shape;
  shape.n_layers = count_in(config, "num_hidden_layers", kMaxLayers);
  shape.hidden = count_in(config, "hidden_size", kMaxSize);
  shape.n_heads = count_in(config, "num_attention_heads", kMaxHeads);
  shape.n_kv_heads = count_in(config, "num_key_value_heads", kMaxHeads, shape.n_heads);
  shape.head_dim = config.find("head_dim") ? count_in(config, "head_dim", kMaxHeadDim)
                                           : head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "intermediate_size", kMaxSize);
  shape.vocab = count_in(config, "vocab_size", kMaxSize);
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext, 2048);
  shape.norm_eps = eps_in(config, "rms_norm_eps", 1e-6);
  return shape;
}

ModelConfig plain_decoder_in(const JsonView& config, const PlainShape& shape, bool tied) {
  ModelConfig model = plain_decoder(shape);
  model.ropes = {rope_from_hf(config, {.head_dim = shape.head_dim,
                                       .max_context = shape.max_context,
                                       .theta = shape.rope_theta})};
  model.layer_kinds[0].ffn.activation = activation_in(config, "hidden_act", "silu");
  model.output.tied = config.get("tie_word_embeddings", tied);
  return model;
}

Activation activation_in(const JsonView& config, std::string_view key, std::string_view otherwise) {
  const auto name = config.get<std::string>(key, std::string(otherwise));
  for (const NamedActivation& known : kActivations) {
    if (name == known.name) return known.activation;
  }
  config.fail("the activation " + in_quotes(name) + " is not supported");
}

float eps_in(const JsonView& config, std::string_view key, double otherwise) {
  return static_cast<float>(config.get(key, otherwise));
}

float number_in(const JsonView& config, std::string_view key, double otherwise) {
  const double number = config.get(key, otherwise);
  if (!std::isfinite(static_cast<float>(number))) config.member(key).fail("is too large");
  return static_cast<float>(number);
}

std::vector<std::string> layer_types_in(const JsonView& config, int64_t n_layers) {
  const auto list = config.find("layer_types");
  if (!list) return {};
  std::vector<std::string> types;
  for (const JsonView& type : list->elements()) types.push_back(type.as<std::string>());
  if (types.size() != static_cast<size_t>(n_layers)) {
    list->fail("has " + std::to_string(types.size()) + " entries for " + std::to_string(n_layers) +
               " layers");
  }
  return types;
}

LayerConfig& add_layer_kind(ModelConfig& config, std::string_view name,
                            const std::function<bool(int64_t)>& is) {
  config.layer_kinds.push_back(config.layer_kinds.front());
  config.layer_kinds.back().name = name;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    if (is(n)) config.layers[static_cast<size_t>(n)] = config.layer_kinds.size() - 1;
  }
  return config.layer_kinds.back();
}

void refuse_if(const JsonView& config, std::string_view key, std::string_view what) {
  const auto found = config.find(key);
  if (!found) return;
  const bool asked = found->value().is_boolean() ? found->as<bool>() : found->as<double>() != 0;
  if (asked) config.fail(in_quotes(key) + ": " + std::string(what) + " not supported");
}

float inverse_root(double size) { return static_cast<float>(1 / std::sqrt(size)); }

}  // namespace faststream
