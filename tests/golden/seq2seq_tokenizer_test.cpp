// Tokenizers of translation models without a tokenizer.json: ids and texts are Transformers'
// (make_seq2seq_tokenizers.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "convert/tokenizers/separate_vocabulary.h"
#include "engine/answer_rules.h"
#include "golden_data.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

class Seq2SeqTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = golden_root() / "seq2seq" / "tokenizers" / GetParam();
    SourceFiles files;
    const auto found = read_separate_vocabulary(folder_, 1 << 20, files);
    ASSERT_TRUE(found && found->config);
    bytes_ = found->sentencepiece;
    TokenizerConfig config = *found->config;
    tokenizer_ = make_tokenizer(std::as_bytes(std::span(bytes_)), config, "t");
  }

  std::filesystem::path folder_;
  std::string bytes_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Seq2SeqTokenizer, GivesTransformersIdsAndTexts) {
  std::ifstream file(folder_ / "cases.json");
  for (const auto& each : nlohmann::json::parse(file)) {
    const auto text = each.at(0).get<std::string>();
    const auto ids = each.at(1).get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_->encode(text), ids) << text;
    if (each.at(2).is_null()) continue;
    Detokenizer stream(*tokenizer_, true);
    std::string decoded;
    for (const int32_t id : ids) decoded += stream.push(id);
    EXPECT_EQ(decoded + stream.finish(), each.at(2).get<std::string>());
  }
}

TEST_P(Seq2SeqTokenizer, KnowsItsLanguages) {
  const std::string name = GetParam();
  if (name == "marian") {
    EXPECT_EQ(language_token("deu", *tokenizer_), tokenizer_->find_token(">>deu<<"));
  } else if (name == "m2m_100") {
    EXPECT_EQ(language_token("fr", *tokenizer_), tokenizer_->find_token("__fr__"));
  }
  // "the" is a word.
  EXPECT_THROW((void)language_token("the", *tokenizer_), UsageError);
}

INSTANTIATE_TEST_SUITE_P(All, Seq2SeqTokenizer, testing::Values("marian", "m2m_100", "t5"));

}  // namespace
}  // namespace faststream
