#include "models/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>

#include "support/error.h"

namespace faststream {
namespace {

ModelConfig small() {
  ModelConfig config;
  config.n_layers = 2;
  config.hidden = 64;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 16;
  config.ffn_hidden = 128;
  config.vocab = 100;
  config.max_context = 512;
  return config;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, SurvivesJson) {
  ModelConfig config = small();
  config.rope = {5e5, "llama3", 8, 1, 4, 8192};
  config.attention_bias = true;
  config.weights = DType::i8;
  config.output = DType::bf16;
  config.embedding = DType::bf16;
  config.norm_eps = 1e-6F;
  const nlohmann::json json = config_to_json(config);
  EXPECT_EQ(config_to_json(config_from_json(json, "test")), json);
}

TEST(ModelConfig, RefusesEveryMissingMember) {
  ModelConfig config = small();
  config.rope = {5e5, "llama3", 8, 1, 4, 8192};
  const nlohmann::json json = config_to_json(config);
  for (const auto& [key, value] : json.items()) {
    nlohmann::json damaged = json;
    damaged.erase(key);
    EXPECT_NE(message_of([&] { config_from_json(damaged, "model.bin"); }).find(key),
              std::string::npos)
        << key;
    damaged[key] = nullptr;
    EXPECT_NE(message_of([&] { config_from_json(damaged, "model.bin"); }), "") << key;
  }
  for (const auto& [key, value] : json["rope"].items()) {
    nlohmann::json damaged = json;
    damaged["rope"].erase(key);
    EXPECT_NE(message_of([&] { config_from_json(damaged, "model.bin"); }), "") << key;
  }
}

TEST(ModelConfig, RefusesNumbersOutOfRange) {
  const nlohmann::json json = config_to_json(small());
  for (const char* key : {"n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn_hidden",
                          "vocab", "max_context"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(0), nlohmann::json(-1), nlohmann::json(INT64_MAX),
          nlohmann::json(UINT64_MAX), nlohmann::json(1.5), nlohmann::json("7")}) {
      nlohmann::json damaged = json;
      damaged[key] = value;
      EXPECT_NE(message_of([&] { config_from_json(damaged, "model.bin"); }).find(key),
                std::string::npos)
          << key << " = " << value;
    }
  }
}

TEST(ModelConfig, RefusesContradictions) {
  const auto refused = [](const std::function<void(ModelConfig&)>& damage) {
    ModelConfig config = small();
    damage(config);
    return message_of([&] { validate(config, "test"); }) != "";
  };
  EXPECT_FALSE(refused([](ModelConfig&) {}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.n_kv_heads = 3; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.head_dim = 15; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.architecture = "mamba"; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.embedding = DType::i8; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.weights = DType::u8; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.norm_eps = std::nanf(""); }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rope.theta = 0; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rope.scaling = "yarn"; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rope = {1e4, "linear", -1}; }));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rope = {1e4, "llama3", 8, 4, 4, 512}; }));
}

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<float> frequencies = rope_inv_freq({}, 8);
  ASSERT_EQ(frequencies.size(), 4U);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.1F);
  EXPECT_FLOAT_EQ(frequencies[2], 0.01F);
  EXPECT_FLOAT_EQ(frequencies[3], 0.001F);
}

TEST(RopeFrequencies, OfLlama3KeepShortWavesAndStretchLongOnes) {
  const RopeConfig plain{5e5};
  const RopeConfig scaled{5e5, "llama3", 8, 1, 4, 8192};
  const std::vector<float> before = rope_inv_freq(plain, 128);
  const std::vector<float> after = rope_inv_freq(scaled, 128);
  EXPECT_EQ(after.front(), before.front());
  EXPECT_FLOAT_EQ(after.back(), before.back() / 8);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_LE(after[i], before[i]);
    EXPECT_GE(after[i], before[i] / 8 * 0.999999F);
  }
}

TEST(TensorPlan, CountsTheParametersOfLlama2) {
  ModelConfig config = small();
  config.n_layers = 32;
  config.hidden = 4096;
  config.n_heads = config.n_kv_heads = 32;
  config.head_dim = 128;
  config.ffn_hidden = 11008;
  config.vocab = 32000;
  int64_t parameters = 0;
  for (const TensorPlan& tensor : tensor_plan(config)) {
    int64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= n;
    parameters += elements;
  }
  EXPECT_EQ(parameters, 6738415616);
}

}  // namespace
}  // namespace faststream
