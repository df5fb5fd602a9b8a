#include "models/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 20;  // products of three stay far below 2^63

[[noreturn]] void fail(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what);
}

DType read_dtype(const JsonView& type) {
  const auto name = type.as<std::string>();
  const auto dtype = dtype_from_name(name);
  if (!dtype) type.fail("is the unknown type " + in_quotes(name));
  return *dtype;
}

void validate_rope(const RopeConfig& rope, int64_t max_context, std::string_view where) {
  const auto positive = [&](double value, const char* name) {
    if (!(value > 0 && std::isfinite(value))) {
      fail(where, std::string("the rotary embedding's ") + name + " must be a positive number");
    }
  };
  positive(rope.theta, "theta");
  if (rope.scaling == "none") return;
  if (rope.scaling != "linear" && rope.scaling != "llama3") {
    fail(where, "the rotary embedding's scaling \"" + rope.scaling +
                    "\" is unknown; this version knows none, linear and llama3");
  }
  positive(rope.factor, "factor");
  if (rope.scaling == "linear") return;
  positive(rope.low_freq_factor, "low_freq_factor");
  positive(rope.high_freq_factor, "high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fail(where, "the rotary embedding's high_freq_factor must exceed its low_freq_factor");
  }
  if (rope.original_max_context < 1 ||
      rope.original_max_context > std::max(max_context, kMaxCount)) {
    fail(where, "the rotary embedding's original_max_context is out of range");
  }
}

}  // namespace

void validate(const ModelConfig& config, std::string_view where) {
  if (config.architecture != "llama") {
    fail(where, "the architecture \"" + config.architecture +
                    "\" is unknown; this version of FastStream runs llama");
  }
  struct Count {
    const char* name;
    int64_t value;
    int64_t max;
  };
  for (const auto& [name, value, max] : {
           Count{"n_layers", config.n_layers, 4096},
           Count{"hidden", config.hidden, kMaxCount},
           Count{"n_heads", config.n_heads, 4096},
           Count{"n_kv_heads", config.n_kv_heads, 4096},
           Count{"head_dim", config.head_dim, 1024},
           Count{"ffn_hidden", config.ffn_hidden, kMaxCount},
           Count{"vocab", config.vocab, 1 << 24},
           Count{"max_context", config.max_context, 1 << 28},
       }) {
    if (value < 1 || value > max) {
      fail(where, std::string(name) + " is " + std::to_string(value) + ", outside 1 to " +
                      std::to_string(max));
    }
  }
  if (config.n_heads % config.n_kv_heads != 0) {
    fail(where, "n_heads (" + std::to_string(config.n_heads) +
                    ") is not a multiple of n_kv_heads (" + std::to_string(config.n_kv_heads) +
                    ")");
  }
  if (config.head_dim % 2 != 0) fail(where, "head_dim is odd; rotary embeddings need pairs");
  if (!(config.norm_eps >= 0 && config.norm_eps < 1)) fail(where, "norm_eps is outside 0 to 1");
  validate_rope(config.rope, config.max_context, where);
  if (config.weights == DType::u8 || config.output == DType::u8) {
    fail(where, "u8 is no type of weights");
  }
  if (config.embedding == DType::i8 || config.embedding == DType::u8) {
    fail(where, "the embedding table must be f32, f16 or bf16");
  }
  if (config.tied_output && config.output != config.embedding) {
    fail(where, "the output matrix is tied to the embedding table but has another type");
  }
}

ModelConfig config_from_json(const nlohmann::json& json, std::string_view where) {
  const JsonView model(json, where, "convert the checkpoint again");
  ModelConfig config;
  config.architecture = model.get<std::string>("architecture");
  config.n_layers = model.get<int64_t>("n_layers");
  config.hidden = model.get<int64_t>("hidden");
  config.n_heads = model.get<int64_t>("n_heads");
  config.n_kv_heads = model.get<int64_t>("n_kv_heads");
  config.head_dim = model.get<int64_t>("head_dim");
  config.ffn_hidden = model.get<int64_t>("ffn_hidden");
  config.vocab = model.get<int64_t>("vocab");
  config.max_context = model.get<int64_t>("max_context");
  config.norm_eps = model.get<float>("norm_eps");
  config.tied_output = model.get<bool>("tied_output");
  config.attention_bias = model.get<bool>("attention_bias");
  config.weights = read_dtype(model.member("weights"));
  config.embedding = read_dtype(model.member("embedding"));
  config.output = read_dtype(model.member("output"));

  const JsonView rope = model.member("rope");
  config.rope.theta = rope.get<double>("theta");
  config.rope.scaling = rope.get<std::string>("scaling");
  if (config.rope.scaling != "none") config.rope.factor = rope.get<double>("factor");
  if (config.rope.scaling == "llama3") {
    config.rope.low_freq_factor = rope.get<double>("low_freq_factor");
    config.rope.high_freq_factor = rope.get<double>("high_freq_factor");
    config.rope.original_max_context = rope.get<int64_t>("original_max_context");
  }
  validate(config, where);
  return config;
}

nlohmann::json config_to_json(const ModelConfig& config) {
  nlohmann::json rope = {{"theta", config.rope.theta}, {"scaling", config.rope.scaling}};
  if (config.rope.scaling != "none") rope["factor"] = config.rope.factor;
  if (config.rope.scaling == "llama3") {
    rope["low_freq_factor"] = config.rope.low_freq_factor;
    rope["high_freq_factor"] = config.rope.high_freq_factor;
    rope["original_max_context"] = config.rope.original_max_context;
  }
  return {
      {"architecture", config.architecture},
      {"n_layers", config.n_layers},
      {"hidden", config.hidden},
      {"n_heads", config.n_heads},
      {"n_kv_heads", config.n_kv_heads},
      {"head_dim", config.head_dim},
      {"ffn_hidden", config.ffn_hidden},
      {"vocab", config.vocab},
      {"max_context", config.max_context},
      {"norm_eps", config.norm_eps},
      {"rope", rope},
      {"tied_output", config.tied_output},
      {"attention_bias", config.attention_bias},
      {"weights", dtype_name(config.weights)},
      {"embedding", dtype_name(config.embedding)},
      {"output", dtype_name(config.output)},
  };
}

std::vector<float> rope_inv_freq(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> inv_freq(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    inv_freq[i] = 1.0F / std::pow(static_cast<float>(rope.theta), exponent);
  }
  const auto factor = static_cast<float>(rope.factor);
  if (rope.scaling == "linear") {
    for (float& f : inv_freq) f /= factor;
  } else if (rope.scaling == "llama3") {
    // Long wavelengths are interpolated, short ones kept, and those between blended.
    const auto context = static_cast<float>(rope.original_max_context);
    const auto low = static_cast<float>(rope.low_freq_factor);
    const auto high = static_cast<float>(rope.high_freq_factor);
    for (float& f : inv_freq) {
      const float wavelength = 2 * std::numbers::pi_v<float> / f;
      if (wavelength > context / low) {
        f /= factor;
      } else if (wavelength >= context / high) {
        const float smooth = (context / wavelength - low) / (high - low);
        f = (1 - smooth) * f / factor + smooth * f;
      }
    }
  }
  return inv_freq;
}

std::vector<TensorPlan> tensor_plan(const ModelConfig& config) {
  std::vector<TensorPlan> plan;
  const auto matrix = [&](const std::string& name, DType dtype, int64_t rows, int64_t cols) {
    plan.push_back({name, dtype, {rows, cols}});
    if (dtype == DType::i8) plan.push_back({name + ".scales", DType::f32, {rows}});
  };
  const auto vector = [&](const std::string& name, int64_t size) {
    plan.push_back({name, DType::f32, {size}});
  };

  matrix("embedding", config.embedding, config.vocab, config.hidden);
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    vector(prefix + "attention_norm", config.hidden);
    matrix(prefix + "attention_qkv", config.weights, config.qkv_dim(), config.hidden);
    if (config.attention_bias) vector(prefix + "attention_qkv_bias", config.qkv_dim());
    matrix(prefix + "attention_out", config.weights, config.hidden, config.q_dim());
    if (config.attention_bias) vector(prefix + "attention_out_bias", config.hidden);
    vector(prefix + "ffn_norm", config.hidden);
    matrix(prefix + "ffn_gate_up", config.weights, 2 * config.ffn_hidden, config.hidden);
    matrix(prefix + "ffn_down", config.weights, config.hidden, config.ffn_hidden);
  }
  vector("output_norm", config.hidden);
  if (!config.tied_output) matrix("output", config.output, config.vocab, config.hidden);
  return plan;
}

}  // namespace faststream
