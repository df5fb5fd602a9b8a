// Small GGUF files, made up for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/gguf/metadata.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream::convert {

/// Writes the bytes of a GGUF file; what is not said is as in files of today.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;

  template <typename T>
  GgufBuilder& add(std::string_view key, GgufType type, T value) {
    return raw(key, type, bytes_of(value));
  }
  GgufBuilder& add(std::string_view key, uint32_t value) { return add(key, GgufType::u32, value); }
  GgufBuilder& add(std::string_view key, float value) { return add(key, GgufType::f32, value); }
  GgufBuilder& add(std::string_view key, bool value) {
    return add(key, GgufType::boolean, static_cast<uint8_t>(value));
  }
  GgufBuilder& add(std::string_view key, std::string_view value) {
    return raw(key, GgufType::string, string(value));
  }
  GgufBuilder& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  GgufBuilder& add(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = array_head(GgufType::string, values.size());
    for (const std::string& value : values) bytes += string(value);
    return raw(key, GgufType::array, bytes);
  }
  template <typename T>
  GgufBuilder& add_array(std::string_view key, GgufType element, const std::vector<T>& values) {
    std::string bytes = array_head(element, values.size());
    for (const T& value : values) bytes += bytes_of(value);
    return raw(key, GgufType::array, bytes);
  }
  /// A value of any type by its bytes. A key that is there already is replaced.
  GgufBuilder& raw(std::string_view key, GgufType type, const std::string& bytes) {
    std::string pair = string(key) + bytes_of(type) + bytes;
    for (auto& [name, old] : pairs_) {
      if (name == key) {
        old = std::move(pair);
        return *this;
      }
    }
    pairs_.emplace_back(key, std::move(pair));
    return *this;
  }
  GgufBuilder& remove(std::string_view key) {
    std::erase_if(pairs_, [&](const auto& pair) { return pair.first == key; });
    return *this;
  }
  /// `shape` has rows first; `type` is ggml's number.
  GgufBuilder& tensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                      const std::string& data) {
    const uint64_t offset = data_.size();
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return tensor_at(name, type, shape, offset);
  }
  GgufBuilder& tensor_at(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                         uint64_t offset) {
    infos_ += string(name) + bytes_of(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i > 0; --i) infos_ += bytes_of(shape[i - 1]);
    infos_ += bytes_of(type) + bytes_of(offset);
    ++n_tensors_;
    return *this;
  }
  GgufBuilder& floats(std::string_view name, const std::vector<int64_t>& shape,
                      const std::vector<float>& values) {
    return tensor(name, 0, shape,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  [[nodiscard]] std::string bytes() const {
    std::string file = "GGUF" + bytes_of(version) + bytes_of(n_tensors_) +
                       bytes_of(static_cast<uint64_t>(pairs_.size()));
    for (const auto& [key, pair] : pairs_) file += pair;
    file += infos_;
    if (n_tensors_ > 0) file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

  template <typename T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string string(std::string_view text) {
    return bytes_of(static_cast<uint64_t>(text.size())) + std::string(text);
  }
  static std::string array_head(GgufType element, uint64_t count) {
    return bytes_of(element) + bytes_of(count);
  }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
  std::string infos_;
  std::string data_;
  uint64_t n_tensors_ = 0;
};

/// Metadata of a tokenizer with the texts <unk>, <s>, </s> and then `texts`, of the type 1.
inline void add_gguf_tokens(GgufBuilder& gguf, const std::vector<std::string>& texts) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  for (const std::string& text : texts) {
    tokens.push_back(text);
    types.push_back(1);
    scores.push_back(-static_cast<float>(tokens.size()));
  }
  gguf.add("tokenizer.ggml.tokens", tokens);
  gguf.add_array("tokenizer.ggml.token_type", GgufType::i32, types);
  gguf.add_array("tokenizer.ggml.scores", GgufType::f32, scores);
}

/// Metadata of the model of tiny_config() with a vocabulary of kTinyVocab letters.
inline GgufBuilder tiny_gguf_metadata() {
  GgufBuilder gguf;
  gguf.add("general.architecture", "llama")
      .add("llama.block_count", 2U)
      .add("llama.context_length", 64U)
      .add("llama.embedding_length", 16U)
      .add("llama.feed_forward_length", 24U)
      .add("llama.attention.head_count", 4U)
      .add("llama.attention.head_count_kv", 2U)
      .add("llama.attention.layer_norm_rms_epsilon", 1e-5F)
      .add("llama.rope.dimension_count", 4U)
      .add("tokenizer.ggml.model", "llama")
      .add("tokenizer.ggml.bos_token_id", 1U)
      .add("tokenizer.ggml.eos_token_id", 2U);
  std::vector<std::string> letters;
  for (int64_t i = 3; i < kTinyVocab; ++i) letters.emplace_back(1, static_cast<char>('a' + i));
  add_gguf_tokens(gguf, letters);
  return gguf;
}

/// The tensors of tiny_tensors() under GGUF's names, rows in the file's order.
inline void add_tiny_gguf_tensors(GgufBuilder& gguf) {
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    gguf.floats(name, shape, random_values(static_cast<size_t>(count), 7));
  };
  add("token_embd.weight", {kTinyVocab, 16});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    add(prefix + "attn_norm.weight", {16});
    add(prefix + "attn_q.weight", {16, 16});
    add(prefix + "attn_k.weight", {8, 16});
    add(prefix + "attn_v.weight", {8, 16});
    add(prefix + "attn_output.weight", {16, 16});
    add(prefix + "ffn_norm.weight", {16});
    add(prefix + "ffn_gate.weight", {24, 16});
    add(prefix + "ffn_up.weight", {24, 16});
    add(prefix + "ffn_down.weight", {16, 24});
  }
  add("output_norm.weight", {16});
}

}  // namespace faststream::convert
