#include "convert/gguf/gguf_llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/gguf/gguf_file.h"
#include "convert/llama_parts.h"
#include "convert/tokenizers/gguf_tokenizer.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "engine/default_sampling.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// All values of a small vector.
std::vector<float> read_vector(const Checkpoint& weights, const SourceTensor& tensor) {
  std::vector<std::byte> raw(tensor.bytes());
  weights.read(tensor, 0, raw);
  std::vector<float> values(static_cast<size_t>(tensor.shape[0]));
  tensor.format->decode(raw.data(), values);
  return values;
}

// Whether `scaled` are the frequencies of `rope` divided by `factors`, but for rounding.
bool explains(const RopeConfig& rope, const std::vector<float>& factors, int64_t head_dim) {
  RopeConfig plain = rope;
  plain.scaling = "none";
  const std::vector<float> expected = rope_inv_freq(rope, head_dim);
  const std::vector<float> unscaled = rope_inv_freq(plain, head_dim);
  for (size_t i = 0; i < factors.size(); ++i) {
    constexpr float kTolerance = 1e-5F;
    const float found = unscaled[i] / factors[i];
    if (!(std::abs(found - expected[i]) <= kTolerance * expected[i])) return false;
  }
  return true;
}

// GGUF keeps the factors that llama3's scaling gives, not what they were computed from. All models
// so far use the same band (low_freq_factor 1, high_freq_factor 4), and contexts of a power of two.
RopeConfig rope_with_factors(RopeConfig rope, const std::vector<float>& factors, int64_t head_dim,
                             const std::string& where) {
  rope.factor = *std::ranges::max_element(factors);
  if (explains(rope, factors, head_dim)) return rope;  // all 1
  rope.scaling = "llama3";
  for (int64_t context = 64; context <= (int64_t{1} << 20); context *= 2) {
    rope.original_max_context = context;
    if (rope.factor >= 1 && std::isfinite(rope.factor) && explains(rope, factors, head_dim))
      return rope;
  }
  throw Error(where + ": tensor \"" + std::string(kRopeFactors) +
              "\" scales the rotary frequencies in a way that is not supported; llama3's is");
}

RopeConfig read_rope(const GgufMetadata& metadata, const Checkpoint& weights, int64_t head_dim) {
  RopeConfig rope;
  rope.theta = metadata.find_number("llama.rope.freq_base").value_or(rope.theta);
  const auto rotated = metadata.find_integer("llama.rope.dimension_count");
  if (rotated && *rotated != head_dim) {
    metadata.fail("llama.rope.dimension_count",
                  "is " + std::to_string(*rotated) + " for heads of " + std::to_string(head_dim) +
                      "; partial rotary embeddings are not supported");
  }
  const double factor =
      metadata.find_number("llama.rope.scaling.factor")
          .value_or(metadata.find_number("llama.rope.scale_linear").value_or(1.0));
  const std::string type = metadata.find_text("llama.rope.scaling.type").value_or("linear");
  if (type == "linear" && factor != 0 && factor != 1) {  // 0 stands for none
    rope.scaling = "linear";
    rope.factor = factor;
  } else if (type != "linear" && type != "none") {
    metadata.fail("llama.rope.scaling.type",
                  "is " + in_quotes(type) +
                      ", which is not supported; this version knows none, "
                      "linear and llama3's factors");
  }
  const SourceTensor* factors = weights.find(kRopeFactors);
  if (factors == nullptr) return rope;
  const std::vector<int64_t> shape = {head_dim / 2};
  const std::vector<float> values = read_vector(weights, weights.require(kRopeFactors, shape));
  if (rope.scaling != "none") {
    metadata.fail("llama.rope.scaling.factor",
                  "comes on top of \"rope_freqs.weight\", which is not supported");
  }
  return rope_with_factors(rope, values, head_dim, metadata.where());
}

int64_t read_head_dim(const GgufMetadata& metadata, const ModelConfig& config) {
  const auto given = metadata.find_integer("llama.attention.key_length");
  if (!given && (config.n_heads < 1 || config.hidden % config.n_heads != 0)) {
    metadata.fail("llama.embedding_length",
                  "is not a multiple of \"llama.attention.head_count\", and there is no "
                  "\"llama.attention.key_length\"");
  }
  const int64_t head_dim = given ? *given : config.hidden / config.n_heads;
  const auto of_values = metadata.find_integer("llama.attention.value_length");
  if (of_values && *of_values != head_dim) {
    metadata.fail("llama.attention.value_length",
                  "is " + std::to_string(*of_values) + " where keys have " +
                      std::to_string(head_dim) + "; heads of two lengths are not supported");
  }
  return head_dim;
}

// Refuses what would give wrong text if it were ignored.
void refuse_unsupported(const GgufMetadata& metadata) {
  const std::string architecture = metadata.text("general.architecture");
  if (architecture != "llama") {
    metadata.fail("general.architecture",
                  "is " + in_quotes(architecture) +
                      ", which is not supported; this version converts \"llama\"");
  }
  if (metadata.find_integer("llama.expert_count").value_or(0) != 0) {
    metadata.fail("llama.expert_count", "asks for experts, which are not supported");
  }
  for (const char* key : {"llama.embedding_scale", "llama.residual_scale", "llama.logit_scale",
                          "llama.attention.scale"}) {
    if (metadata.has(key)) metadata.fail(key, "asks for a scaling that is not supported");
  }
}

int64_t vocabulary_rows(const GgufMetadata& metadata, const Checkpoint& weights) {
  const SourceTensor* embedding = weights.find("token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2) return embedding->shape[0];
  return metadata.integer("llama.vocab_size");  // check_tensors() says what the tensor lacks
}

// "tokenizer.chat_template" is the one in use; others have names.
nlohmann::json chat_templates(const GgufMetadata& metadata) {
  auto found = metadata.find_text("tokenizer.chat_template");
  if (!found) found = metadata.find_text("tokenizer.chat_template.default");
  if (!found) return nullptr;
  const auto tool_use = metadata.find_text("tokenizer.chat_template.tool_use");
  if (!tool_use) return *found;
  return {{"default", *found}, {"tool_use", *tool_use}};
}

// "general.sampling.*" in the terms of a model file; null where there is none of them.
nlohmann::json recommended_sampling(const GgufMetadata& metadata) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNumbers = {
      {{"temp", "temperature"},
       {"top_p", "top_p"},
       {"min_p", "min_p"},
       {"penalty_repeat", "repetition_penalty"}}};
  const std::string prefix = "general.sampling.";
  nlohmann::json sampling;
  for (const auto& [theirs, ours] : kNumbers) {
    if (const auto value = metadata.find_number(prefix + theirs)) {
      sampling[ours] = static_cast<float>(*value);
    }
  }
  if (const auto top_k = metadata.find_integer(prefix + "top_k")) sampling["top_k"] = *top_k;
  if (!sampling.is_null()) (void)sampling_from_json(sampling, metadata.where());
  return sampling;
}

}  // namespace

ModelConfig llama_config_from_gguf(const GgufMetadata& metadata, const Checkpoint& weights) {
  refuse_unsupported(metadata);
  ModelConfig config;
  config.architecture = "llama";
  config.n_layers = metadata.integer("llama.block_count");
  config.hidden = metadata.integer("llama.embedding_length");
  config.n_heads = metadata.integer("llama.attention.head_count");
  config.n_kv_heads =
      metadata.find_integer("llama.attention.head_count_kv").value_or(config.n_heads);
  config.head_dim = read_head_dim(metadata, config);
  config.ffn_hidden = metadata.integer("llama.feed_forward_length");
  config.vocab = vocabulary_rows(metadata, weights);
  config.max_context = metadata.integer("llama.context_length");
  config.norm_eps = static_cast<float>(metadata.number("llama.attention.layer_norm_rms_epsilon"));
  config.tied_output = weights.find("output.weight") == nullptr;
  config.attention_bias = weights.find("blk.0.attn_q.bias") != nullptr;
  validate(config, metadata.where());  // what the rotary embedding is computed from
  config.rope = read_rope(metadata, weights, config.head_dim);
  if (const SourceTensor* first = weights.find("blk.0.attn_q.weight")) {
    config.weights = config.embedding = config.output = first->format->packed;
  }
  validate(config, metadata.where());
  return config;
}

SourceModel open_gguf_llama(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  SourceFiles files;
  GgufFile gguf = open_gguf_file(path, files);
  const ModelConfig config = llama_config_from_gguf(gguf.metadata, gguf.weights);
  GgufTokenizer own = tokenizer_from_gguf(gguf.metadata);
  SourceModel model{.config = config,
                    .tokenizer = std::move(own.config),
                    .tokenizer_model = std::move(own.sentencepiece),
                    .tokenizer_description = std::move(own.description),
                    .chat_template = chat_templates(gguf.metadata),
                    .special_tokens = {},
                    .sampling = recommended_sampling(gguf.metadata),
                    .weights = std::move(gguf.weights),
                    .parts = llama_parts(config, kGgufLlamaNames, true),
                    .added_tokens = {},
                    .files = {}};
  if (tokenizer) {
    TokenizerFile file = read_tokenizer_file(*tokenizer, config.vocab, files);
    model.tokenizer_model = std::move(file.sentencepiece);
    model.tokenizer_description = std::move(file.description);
  }
  refuse_unknown_tensors(model, [](std::string_view name) { return name == kRopeFactors; });
  model.files = std::move(files);
  return model;
}

}  // namespace faststream
