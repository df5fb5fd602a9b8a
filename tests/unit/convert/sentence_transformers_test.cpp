#include "convert/huggingface/sentence_transformers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/huggingface/hf_folder.h"
#include "support/error.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

TEST(SentenceTransformers, NameTheirPoolingInTwoWays) {
  EXPECT_EQ(pooling_from_json({{"pooling_mode", "lasttoken"}}, "test"), Pooling::last);
  EXPECT_EQ(pooling_from_json({{"pooling_mode", {"max"}}}, "test"), Pooling::largest);
  EXPECT_EQ(pooling_from_json(
                {{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", false}}, "test"),
            Pooling::first);
  for (const json& wrong :
       {json::object(), json{{"pooling_mode", "best"}}, json{{"pooling_mode", 1}},
        json{{"pooling_mode", {"cls", "mean"}}}, json{{"pooling_mode", json::array()}},
        json{{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", true}},
        json{{"pooling_mode_cls_token", "yes"}}}) {
    EXPECT_THROW((void)pooling_from_json(wrong, "test"), Error) << wrong;
  }
}

class ModulesJson : public testing::Test {
 protected:
  // What is said of a modules.json with this text.
  std::string error_of(const std::string& text) {
    write_bytes(folder_ / "modules.json", text);
    SourceFiles files;
    Checkpoint weights("test");
    FamilyModel model;
    model.config.hidden = 8;
    model.config.max_context = 512;
    model.config.pooling = classifier_;
    try {
      read_sentence_modules(folder_.path(), files, model, weights);
    } catch (const Error& error) {
      return error.what();
    }
    pooling_ = model.config.pooling;
    return "";
  }

  static std::string modules(const std::string& list) {
    return R"([{"path": "", "type": "sentence_transformers.models.Transformer"})" + list + "]";
  }
  static std::string module(const std::string& type, const std::string& path) {
    return R"(,{"path": ")" + path + R"(", "type": "sentence_transformers.models.)" + type + "\"}";
  }

  TemporaryFolder folder_;
  std::optional<PoolingConfig> classifier_;  // of the model's family
  std::optional<PoolingConfig> pooling_;
};

TEST_F(ModulesJson, GivePoolingNormalizationAndLength) {
  std::filesystem::create_directory(folder_ / "1_Pooling");
  write_bytes(folder_ / "1_Pooling" / "config.json", R"({"pooling_mode_max_tokens": true})");
  write_bytes(folder_ / "sentence_bert_config.json", R"({"max_seq_length": 128})");
  EXPECT_EQ(error_of(modules(module("Pooling", "1_Pooling") + module("Normalize", "2_N"))), "");
  EXPECT_EQ(pooling_->mode, Pooling::largest);
  EXPECT_TRUE(pooling_->normalize);
  EXPECT_EQ(pooling_->max_tokens, 128);
  write_bytes(folder_ / "sentence_bert_config.json", R"({"max_seq_length": 4096})");
  EXPECT_EQ(error_of(modules(module("Pooling", "1_Pooling"))), "");
  EXPECT_EQ(pooling_->max_tokens, 512) << "the model has no more positions";
}

TEST_F(ModulesJson, BringTheDefaultPrompt) {
  std::filesystem::create_directory(folder_ / "1_Pooling");
  write_bytes(folder_ / "1_Pooling" / "config.json", R"({"pooling_mode": "cls"})");
  const std::string text = modules(module("Pooling", "1_Pooling"));
  const auto with = [&](const std::string& config) {
    write_bytes(folder_ / "config_sentence_transformers.json", config);
    return error_of(text);
  };
  EXPECT_EQ(with(R"({"prompts": {"q": "query: "}, "default_prompt_name": null})"), "");
  EXPECT_EQ(pooling_->prompt, "");
  EXPECT_EQ(with(R"({"prompts": {"q": "query: "}, "default_prompt_name": "q"})"), "");
  EXPECT_EQ(pooling_->prompt, "query: ");
  EXPECT_NE(with(R"({"default_prompt_name": "q"})"), "");
  EXPECT_NE(with(R"({"prompts": {}, "default_prompt_name": "q"})"), "");
}

TEST_F(ModulesJson, LeaveAClassifierItsHead) {
  classifier_ = {.mode = Pooling::first, .dense = {{.size = 1}}, .scores = true, .sigmoid = true};
  write_bytes(folder_ / "tokenizer_config.json", R"({"model_max_length": 60})");
  EXPECT_EQ(error_of(modules("")), "");
  EXPECT_TRUE(pooling_->scores);
  EXPECT_TRUE(pooling_->sigmoid);
  EXPECT_EQ(pooling_->max_tokens, 60);
  const auto with = [&](const std::string& config) {
    write_bytes(folder_ / "config_sentence_transformers.json", config);
    return error_of(modules(""));
  };
  EXPECT_EQ(with(R"({"activation_fn": "torch.nn.modules.linear.Identity"})"), "");
  EXPECT_FALSE(pooling_->sigmoid);
  EXPECT_NE(with(R"({"activation_fn": "torch.nn.modules.activation.Softmax"})").find("Softmax"),
            std::string::npos);
  EXPECT_NE(with(R"({"prompts": {"q": "query: "}, "default_prompt_name": "q"})"), "");
}

TEST(OldNames, OfNormsBecomeThoseOfToday) {
  const TemporaryFolder folder;
  write_bytes(folder / "weights", "");
  SourceFiles files;
  Checkpoint weights("test");
  weights.add_file(files.open(folder / "weights"));
  for (const char* name :
       {"a.LayerNorm.gamma", "a.LayerNorm.beta", "gamma", "b.LayerNorm.weight"}) {
    weights.add_tensor({.name = name, .shape = {1}});
  }
  rename_old_norms(weights);
  for (const char* name :
       {"a.LayerNorm.weight", "a.LayerNorm.bias", "gamma", "b.LayerNorm.weight"}) {
    EXPECT_NE(weights.find(name), nullptr) << name;
  }
  EXPECT_EQ(weights.tensors().size(), 4U);
}

TEST_F(ModulesJson, AreRefusedWhereTheyAreUnsound) {
  std::filesystem::create_directory(folder_ / "1_Pooling");
  write_bytes(folder_ / "1_Pooling" / "config.json", R"({"pooling_mode": "mean"})");
  const std::string pooling = module("Pooling", "1_Pooling");
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("[1]"), std::string("nonsense"),
        modules(""), modules(module("Normalize", "2_N")), modules(module("Pooling", "..")),
        modules(module("Pooling", "a/b")), modules(module("Pooling", "")),
        modules(module("Pooling", "missing")), modules(module("Pooling", std::string(3000, 'x'))),
        modules(pooling + pooling), modules(pooling + module("Dense", "2_Dense")),
        modules(pooling + module("WordWeights", "2")),
        modules(pooling + module("Normalize", "2") + module("Normalize", "3"))}) {
    const std::string error = error_of(text);
    EXPECT_TRUE(error.find(folder_.path().string()) != std::string::npos) << text << ": " << error;
    EXPECT_LT(error.size(), 600U);
  }
}

}  // namespace
}  // namespace faststream::convert
