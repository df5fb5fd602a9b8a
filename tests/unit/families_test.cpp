#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "checkpoint_files.h"
#include "convert/families/family.h"
#include "convert/hf_folder.h"
#include "golden/golden_data.h"

namespace faststream {
namespace {

using nlohmann::json;

ModelConfig describe(const json& config) {
  const json text = text_config(config);
  const Checkpoint none("folder");
  return describe_family({JsonView(text, "config.json"), none}, "config.json").config;
}

std::string error_with(const json& changes) {
  json config = tiny_config();
  config.merge_patch(changes);
  return error_of([&] { describe(config); });
}

TEST(Families, RefuseWhatTheyDoNotKnowByName) {
  EXPECT_TRUE(says(error_with({{"model_type", "bert"}}), "\"bert\"", "README"));
  EXPECT_TRUE(says(error_with({{"architectures", {"BertModel"}}}), "\"BertModel\"", "README"));
  EXPECT_TRUE(says(error_with({{"hidden_act", "tanh"}}), "\"tanh\""));
  for (const char* method : {"gptq", "awq", "bitsandbytes", "fp8"}) {
    EXPECT_TRUE(says(error_with({{"quantization_config", {{"quant_method", method}}}}),
                     "already quantized", method, "the original one"));
  }
  EXPECT_TRUE(says(error_with({{"model_type", "qwen2"},
                               {"use_sliding_window", true},
                               {"layer_types", {"full_attention", "linear_attention"}}}),
                   "layer_types[1]", "\"linear_attention\""));
  EXPECT_TRUE(says(error_with({{"model_type", "qwen2"},
                               {"use_sliding_window", true},
                               {"layer_types", {"full_attention"}}}),
                   "layer_types", "1 entries for 2 layers"));
  EXPECT_TRUE(says(error_with({{"model_type", "olmoe"}, {"clip_qkv", 8.0}}), "clip_qkv"));
  EXPECT_TRUE(says(error_with({{"model_type", "gpt_oss"}, {"swiglu_limit", 5.0}}), "swiglu_limit"));
}

TEST(Families, GiveWindowsToSomeLayers) {
  json config = tiny_config();
  config.update({{"model_type", "qwen3"},
                 {"num_hidden_layers", 4},
                 {"use_sliding_window", true},
                 {"sliding_window", 8},
                 {"max_window_layers", 3}});
  const ModelConfig model = describe(config);
  EXPECT_EQ(model.layers, (std::vector<size_t>{0, 0, 0, 1}));
  EXPECT_EQ(model.layer(2).attention.window, 0);
  EXPECT_EQ(model.layer(3).attention.window, 8);
  EXPECT_EQ(model.layer(3).name, "windowed");
}

TEST(Families, GiveEachHeadItsSlope) {
  EXPECT_EQ(alibi_slopes(4), (std::vector<float>{0.25F, 0.0625F, 0.015625F, 0.00390625F}));
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{0.0625F, 0.00390625F, 0.25F}));
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0.00390625F}));
}

// The configurations of all golden checkpoints, each member in turn replaced by what it should not
// be: what comes is a description that is valid, or one sentence.
TEST(Families, SurviveAnyMember) {
  const std::vector<json> wrong = {nullptr, -1, INT64_MAX, "many", {1, 2}, {{"a", "b"}}};
  size_t described = 0;
  for (const std::string& name : golden_variants("families/")) {
    std::ifstream file(golden_root() / name / "config.json");
    const json config = json::parse(file);
    EXPECT_NO_THROW(describe(config)) << name;
    for (const auto& [key, value] : config.items()) {
      for (const json& other : wrong) {
        json changed = config;
        changed[key] = other;
        try {
          const ModelConfig model = describe(changed);
          validate(model, "test");
          ++described;
        } catch (const Error& error) {
          EXPECT_TRUE(says(error.what(), "config.json")) << name << ": " << key;
        }
      }
    }
  }
  EXPECT_GT(described, 0U);
}

}  // namespace
}  // namespace faststream
