// Small checkpoints, made up for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/dtype.h"
#include "text/sentencepiece_model.h"
#include "unit/normal.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {

struct TestTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using TestTensors = std::map<std::string, TestTensor>;

/// Normal numbers of standard deviation 0.1 that depend on the seed alone.
inline std::vector<float> random_values(size_t count, uint32_t seed) {
  std::minstd_rand engine(seed);
  Normal normal(0.1F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

/// The bytes of a safetensors file.
inline std::string safetensors_bytes(const TestTensors& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.resize(begin + tensor.values.size() * dtype_size(tensor.dtype));
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      store_float(data.data() + begin, tensor.dtype, i, tensor.values[i]);
    }
    const char* type = tensor.dtype == DType::f32   ? "F32"
                       : tensor.dtype == DType::f16 ? "F16"
                                                    : "BF16";
    header[name] = {
        {"dtype", type}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + text + data;
}

/// A serialized SentencePiece model: <unk>, <s>, </s>, then letters, alone and together.
inline std::string tiny_tokenizer(int64_t vocab) {
  using Type = SentencePieceModel::PieceType;
  SentencePieceModel model;
  model.pieces = {
      {"<unk>", 0, Type::unknown}, {"<s>", 0, Type::control}, {"</s>", 0, Type::control}};
  for (int64_t i = 3; i < vocab; ++i) {
    std::string letters;
    for (int64_t rest = i - 3; letters.empty() || rest > 0; rest /= 26) {
      letters += static_cast<char>('a' + rest % 26);
    }
    model.pieces.push_back({letters, static_cast<float>(-i), Type::normal});
  }
  return serialize_sentencepiece_model(model);
}

inline constexpr int64_t kTinyVocab = 20;

/// config.json of a Llama with two layers, GQA, and a vocabulary of kTinyVocab.
inline nlohmann::json tiny_config() {
  return {{"model_type", "llama"},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", kTinyVocab},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"tie_word_embeddings", false},
          {"rope_theta", 10000.0}};
}

/// The tensors of tiny_config().
inline TestTensors tiny_tensors(DType dtype) {
  TestTensors tensors;
  uint32_t seed = 1;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    tensors[name] = {dtype, shape, random_values(static_cast<size_t>(count), seed++)};
  };
  add("model.embed_tokens.weight", {kTinyVocab, 16});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {16});
    add(prefix + "self_attn.q_proj.weight", {16, 16});
    add(prefix + "self_attn.k_proj.weight", {8, 16});
    add(prefix + "self_attn.v_proj.weight", {8, 16});
    add(prefix + "self_attn.o_proj.weight", {16, 16});
    add(prefix + "post_attention_layernorm.weight", {16});
    add(prefix + "mlp.gate_proj.weight", {24, 16});
    add(prefix + "mlp.up_proj.weight", {24, 16});
    add(prefix + "mlp.down_proj.weight", {16, 24});
  }
  add("model.norm.weight", {16});
  add("lm_head.weight", {kTinyVocab, 16});
  return tensors;
}

/// Writes config.json, model.safetensors and tokenizer.model into an existing folder.
inline void write_hf_folder(const std::filesystem::path& folder, const nlohmann::json& config,
                            const TestTensors& tensors) {
  write_bytes(folder / "config.json", config.dump(2));
  write_bytes(folder / "model.safetensors", safetensors_bytes(tensors));
  write_bytes(folder / "tokenizer.model", tiny_tokenizer(kTinyVocab));
}

}  // namespace faststream::convert
