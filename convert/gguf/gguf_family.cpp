#include "convert/gguf/gguf_family.h"

#include <cmath>
#include <string>

#include "convert/rope_rules.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// The names of llama.cpp's gguf-py (constants.py). Queries and keys of Llama and its like have
// their rotary pairs side by side.
Modules gguf_modules() {
  Modules modules;
  modules.base = "";
  modules.embedding = "token_embd";
  modules.layers = "blk.";
  modules.attention_norm = "attn_norm";
  modules.qkv = {"attn_q", "attn_k", "attn_v"};
  modules.attention_out = "attn_output";
  modules.ffn_norm = "ffn_norm";
  modules.gate_up = {"ffn_gate", "ffn_up"};
  modules.down = "ffn_down";
  modules.output_norm = "output_norm";
  modules.output = "output";
  modules.interleaved = true;
  modules.unused = {std::string(kRopeFactors)};
  return modules;
}

// All values of a small vector.
std::vector<float> read_vector(const Checkpoint& weights, const SourceTensor& tensor) {
  std::vector<std::byte> raw(tensor.bytes());
  weights.read(tensor, 0, raw);
  std::vector<float> values(static_cast<size_t>(tensor.shape[0]));
  tensor.format->decode(raw.data(), values);
  return values;
}

// A description from the metadata of an architecture, whose name its keys begin with.
class Description {
 public:
  Description(const GgufMetadata& metadata, const Checkpoint& weights)
      : metadata_(metadata),
        weights_(weights),
        prefix_(metadata.text("general.architecture") + ".") {}

  [[nodiscard]] ModelConfig make() const {
    refuse_unsupported();
    const PlainShape shape = read_shape();
    ModelConfig config = plain_decoder(shape);
    config.ropes = {read_rope(shape)};
    config.output.tied = weights_.find("output.weight") == nullptr;
    AttentionConfig& attention = config.layer_kinds[0].attention;
    attention.qkv_bias = weights_.find("blk.0.attn_q.bias") != nullptr;
    attention.out_bias = weights_.find("blk.0.attn_output.bias") != nullptr;
    config.layer_kinds[0].ffn.bias = weights_.find("blk.0.ffn_up.bias") != nullptr;
    validate(config, metadata_.where());
    return config;
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  // A size that must be there unless it has a value when it is not.
  [[nodiscard]] int64_t count(std::string_view name, int64_t most) const {
    return in_range(name, metadata_.integer(key(name)), most);
  }
  [[nodiscard]] int64_t count(std::string_view name, int64_t most, int64_t otherwise) const {
    return in_range(name, metadata_.find_integer(key(name)).value_or(otherwise), most);
  }
  [[nodiscard]] int64_t in_range(std::string_view name, int64_t value, int64_t most) const {
    if (value >= 1 && value <= most) return value;
    metadata_.fail(key(name),
                   "is " + std::to_string(value) + ", outside 1 to " + std::to_string(most));
  }

  // Refuses what would give wrong text if it were ignored.
  void refuse_unsupported() const {
    const std::string architecture = metadata_.text("general.architecture");
    if (architecture != "llama") {
      metadata_.fail("general.architecture",
                     "is " + in_quotes(architecture) +
                         ", which is not supported; this version converts \"llama\"");
    }
    if (metadata_.find_integer(key("expert_count")).value_or(0) != 0) {
      metadata_.fail(key("expert_count"), "asks for experts, which are not supported");
    }
    for (const char* name :
         {"embedding_scale", "residual_scale", "logit_scale", "attention.scale"}) {
      if (metadata_.has(key(name))) {
        metadata_.fail(key(name), "asks for a scaling that is not supported");
      }
    }
  }

  [[nodiscard]] PlainShape read_shape() const {
    PlainShape shape;
    shape.n_layers = count("block_count", 4096);
    shape.hidden = count("embedding_length", kMaxSize);
    shape.n_heads = count("attention.head_count", kMaxHeads);
    shape.n_kv_heads = count("attention.head_count_kv", kMaxHeads, shape.n_heads);
    shape.head_dim = read_head_dim(shape);
    shape.ffn_hidden = count("feed_forward_length", kMaxSize);
    shape.vocab = vocabulary_rows();
    shape.max_context = count("context_length", int64_t{1} << 28);
    shape.norm_eps = static_cast<float>(metadata_.number(key("attention.layer_norm_rms_epsilon")));
    shape.rope_theta = metadata_.find_number(key("rope.freq_base")).value_or(shape.rope_theta);
    return shape;
  }

  [[nodiscard]] int64_t read_head_dim(const PlainShape& shape) const {
    const bool given = metadata_.has(key("attention.key_length"));
    if (!given && shape.hidden % shape.n_heads != 0) {
      metadata_.fail(key("embedding_length"),
                     "is not a multiple of " + in_quotes(key("attention.head_count")) +
                         ", and there is no " + in_quotes(key("attention.key_length")));
    }
    const int64_t head_dim =
        given ? count("attention.key_length", kMaxHeadDim) : shape.hidden / shape.n_heads;
    const auto of_values = metadata_.find_integer(key("attention.value_length"));
    if (of_values && *of_values != head_dim) {
      metadata_.fail(key("attention.value_length"),
                     "is " + std::to_string(*of_values) + " where keys have " +
                         std::to_string(head_dim) + "; heads of two lengths are not supported");
    }
    return head_dim;
  }

  [[nodiscard]] int64_t vocabulary_rows() const {
    const SourceTensor* embedding = weights_.find("token_embd.weight");
    if (embedding != nullptr && embedding->shape.size() == 2) return embedding->shape[0];
    return count("vocab_size", kMaxSize);  // check_tensors() says what the tensor lacks
  }

  [[nodiscard]] RopeConfig read_rope(const PlainShape& shape) const {
    const int64_t rotated = count("rope.dimension_count", shape.head_dim, shape.head_dim);
    RopeConfig rope;
    rope.name = "rope";
    rope.frequencies = rotary_frequencies(shape.rope_theta, rotated);
    apply_scaling(rope);
    apply_factors(rope);
    return rope;
  }

  void apply_scaling(RopeConfig& rope) const {
    const double factor =
        metadata_.find_number(key("rope.scaling.factor"))
            .value_or(metadata_.find_number(key("rope.scale_linear")).value_or(1.0));
    const std::string type = metadata_.find_text(key("rope.scaling.type")).value_or("linear");
    if (type == "none" || (type == "linear" && factor == 0)) return;  // 0 stands for none
    if (type != "linear") {
      metadata_.fail(
          key("rope.scaling.type"),
          "is " + in_quotes(type) + ", which is not supported; this version knows none and linear");
    }
    for (float& frequency : rope.frequencies) frequency /= static_cast<float>(factor);
  }

  // Factors of llama3's rule, or any other: what each frequency is divided by.
  void apply_factors(RopeConfig& rope) const {
    if (weights_.find(kRopeFactors) == nullptr) return;
    const std::vector<int64_t> shape = {rope.dims() / 2};
    const std::vector<float> factors = read_vector(weights_, weights_.require(kRopeFactors, shape));
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!(factors[i] > 0 && std::isfinite(factors[i]))) {
        throw Error(metadata_.where() + ": tensor \"" + std::string(kRopeFactors) +
                    "\" has a factor that is not a number above 0");
      }
      rope.frequencies[i] /= factors[i];
    }
  }

  static constexpr int64_t kMaxSize = int64_t{1} << 24;
  static constexpr int64_t kMaxHeads = 4096;
  static constexpr int64_t kMaxHeadDim = 1024;

  const GgufMetadata& metadata_;
  const Checkpoint& weights_;
  std::string prefix_;
};

}  // namespace

GgufFamilyModel describe_gguf(const GgufMetadata& metadata, const Checkpoint& weights) {
  return {Description(metadata, weights).make(), gguf_modules()};
}

}  // namespace faststream
