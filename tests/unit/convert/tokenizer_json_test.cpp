#include "convert/tokenizers/tokenizer_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/error.h"

namespace faststream::convert {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "</s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

HfTokenizer read(const json& tokenizer, const json& config = json::object(),
                 const json& map = json::object()) {
  return tokenizer_from_json(tokenizer, config, map, "folder");
}

std::string tokenizer_refusal(const json& tokenizer, const json& config = json::object()) {
  try {
    read(tokenizer, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenizerJson, ReadsMergesInBothSpellings) {
  for (const json& merge : {json("a b"), json({"a", "b"})}) {
    json tokenizer = small_tokenizer();
    tokenizer["model"]["merges"] = json::array({merge});
    const TokenizerDescription description = read(tokenizer).description;
    ASSERT_EQ(description.merges.size(), 1U);
    EXPECT_EQ(description.merges[0], (std::array<int32_t, 2>{0, 1}));
    EXPECT_EQ(description.vocabulary, (std::vector<std::string>{"a", "b", "ab", "<s>", "</s>"}));
    EXPECT_FALSE(description.pipeline["model"].contains("vocab"));
  }
}

TEST(TokenizerJson, ReadsVocabulariesWithScores) {
  json tokenizer = small_tokenizer();
  tokenizer["added_tokens"] = json::array();
  tokenizer["model"] = json::parse(R"({"unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5]]})");
  const TokenizerDescription description = read(tokenizer).description;
  EXPECT_EQ(description.pipeline["model"]["type"], "Unigram") << "old files do not say so";
  EXPECT_EQ(description.scores, (std::vector<double>{0, -1.5}));
}

TEST(TokenizerJson, KnowsWhichAddedTokensTheModelHas) {
  json tokenizer = small_tokenizer();
  tokenizer["added_tokens"].push_back({{"id", 99}, {"content", "ab"}, {"normalized", false}});
  const auto rules = read(tokenizer).description.added_tokens;
  ASSERT_EQ(rules.size(), 3U);
  EXPECT_EQ(rules[0].id, 2) << "the model's id counts";
  EXPECT_TRUE(rules[0].in_model);
  EXPECT_FALSE(rules[0].normalized);
  EXPECT_FALSE(rules[1].in_model);
  EXPECT_TRUE(rules[1].special);
}

TEST(TokenizerJson, AddsBosAndEosAsTokenizerConfigSays) {
  const json names = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  TokenizerConfig config = read(small_tokenizer(), names).config;
  EXPECT_EQ(config.bos, 3);
  EXPECT_EQ(config.eos, (Ids{4}));
  EXPECT_TRUE(config.prefix.empty());
  json both = names;
  both["add_bos_token"] = both["add_eos_token"] = true;
  config = read(small_tokenizer(), both).config;
  EXPECT_EQ(config.prefix, (Ids{3}));
  EXPECT_EQ(config.suffix, (Ids{4}));
  config = read(small_tokenizer(), json::object(), names).config;
  EXPECT_EQ(config.bos, 3) << "special_tokens_map.json counts where nothing else is said";
}

TEST(TokenizerJson, TakesWhatThePostProcessorAdds) {
  json tokenizer = small_tokenizer();
  tokenizer["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3, 0], "tokens": ["<s>", "a"]}}},
    {"type": "BertProcessing", "sep": ["</s>", 4], "cls": ["b", 1]}]})");
  TokenizerConfig config = read(tokenizer).config;
  EXPECT_EQ(config.prefix, (Ids{1, 3, 0}));
  EXPECT_EQ(config.suffix, (Ids{4}));
  config = read(tokenizer, {{"bos_token", "<s>"}, {"add_bos_token", false}}).config;
  EXPECT_TRUE(config.prefix.empty()) << "tokenizer_config.json counts more";
}

TEST(TokenizerJson, GivesPairsSegmentsWhereTheTokenizerHasThem) {
  json tokenizer = small_tokenizer();
  tokenizer["post_processor"] = {
      {"type", "BertProcessing"}, {"sep", {"</s>", 4}}, {"cls", {"<s>", 3}}};
  const auto has_segments = [&](const json& config) {
    return read(tokenizer, config).config.pair_segments;
  };
  EXPECT_TRUE(has_segments(json::object()));
  EXPECT_TRUE(has_segments({{"tokenizer_class", nullptr}}));
  EXPECT_TRUE(has_segments({{"tokenizer_class", "BertTokenizer"}}));
  EXPECT_TRUE(has_segments({{"tokenizer_class", "ElectraTokenizerFast"}}));
  for (const char* without : {"PreTrainedTokenizerFast", "TokenizersBackend", "MPNetTokenizer",
                              "DistilBertTokenizerFast", "OfTheirOwn"}) {
    EXPECT_FALSE(has_segments({{"tokenizer_class", without}})) << without;
  }
  const json all = {"input_ids", "token_type_ids", "attention_mask"};
  EXPECT_TRUE(has_segments({{"tokenizer_class", "TokenizersBackend"}, {"model_input_names", all}}));
  EXPECT_FALSE(has_segments(
      {{"tokenizer_class", "BertTokenizer"}, {"model_input_names", json::array({"input_ids"})}}));
  tokenizer["post_processor"]["type"] = "RobertaProcessing";
  EXPECT_FALSE(has_segments({{"model_input_names", all}})) << "all of its tokens are segment 0";
}

TEST(TokenizerJson, LetsTokenizerConfigChangeAddedTokens) {
  const json config = {{"added_tokens_decoder",
                        {{"4", {{"content", "</s>"}, {"special", true}, {"rstrip", true}}},
                         {"5", {{"content", "<x>"}, {"special", false}}}}},
                       {"unk_token", "b"}};
  const auto rules = read(small_tokenizer(), config).description.added_tokens;
  ASSERT_EQ(rules.size(), 4U);
  EXPECT_EQ(rules[0].text, "b");
  EXPECT_TRUE(rules[0].special);
  EXPECT_TRUE(rules[2].rstrip);
  EXPECT_EQ(rules[3].id, 5);
}

TEST(TokenizerJson, RefusesPostProcessorsThatAddATextOfTheirOwn) {
  // A piece of a few bytes for each thousand tokens.
  const auto with = [](int pieces, int ids) {
    json tokenizer = small_tokenizer();
    json single = json::array({{{"Sequence", {{"id", "A"}}}}});
    for (int n = 0; n < pieces; ++n) single.push_back({{"SpecialToken", {{"id", "s"}}}});
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", single},
        {"special_tokens", {{"s", {{"ids", std::vector<int>(static_cast<size_t>(ids), 3)}}}}}};
    return tokenizer;
  };
  EXPECT_EQ(read(with(16, 16)).config.suffix.size(), 256U);
  for (const json& tokenizer : {with(257, 1), with(1, 257), with(10'000, 1'000)}) {
    EXPECT_EQ(tokenizer_refusal(tokenizer),
              "folder: tokenizer.json: \"post_processor\" puts more than 256 tokens around texts, "
              "which is not supported");
  }
  const json bert = {{"type", "BertProcessing"}, {"cls", {"<s>", 3}}, {"sep", {"</s>", 4}}};
  json many = small_tokenizer();
  many["post_processor"] = {{"type", "Sequence"}, {"processors", std::vector<json>(200, bert)}};
  EXPECT_NE(tokenizer_refusal(many).find("more than 256 tokens"), std::string::npos);
}

TEST(TokenizerJson, NamesWhatIsWrong) {
  json tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"]["c"] = 1;
  EXPECT_NE(tokenizer_refusal(tokenizer).find("have the same id, 1"), std::string::npos);
  tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"]["c"] = -1;
  EXPECT_NE(tokenizer_refusal(tokenizer).find("gives the token \"c\" no id from 0"),
            std::string::npos);
  tokenizer = small_tokenizer();
  tokenizer["model"]["merges"] = json::array({"a c"});
  EXPECT_NE(tokenizer_refusal(tokenizer).find("\"c\", which is not in the vocabulary"),
            std::string::npos);
  tokenizer["model"]["merges"] = json::array({"abc"});
  EXPECT_NE(tokenizer_refusal(tokenizer).find("not two tokens"), std::string::npos);
  tokenizer = small_tokenizer();
  tokenizer.erase("model");
  EXPECT_EQ(tokenizer_refusal(tokenizer), "folder: tokenizer.json: \"model\" is missing");
  tokenizer = small_tokenizer();
  tokenizer["post_processor"] = {{"type", "Magic"}};
  EXPECT_NE(tokenizer_refusal(tokenizer).find("the post-processor \"Magic\""), std::string::npos);
  EXPECT_NE(
      tokenizer_refusal(small_tokenizer(), {{"added_tokens_decoder", {{"x", json::object()}}}})
          .find("names \"x\", which is no token id"),
      std::string::npos);
}

}  // namespace
}  // namespace faststream::convert
