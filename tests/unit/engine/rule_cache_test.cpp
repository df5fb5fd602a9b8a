#include "engine/rule_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "support/error.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

class RuleCacheTest : public testing::Test {
 protected:
  static OutputRule regex(const std::string& pattern) {
    return {.kind = OutputRule::Kind::regex, .text = pattern};
  }
  static TokenizerConfig config() {
    TokenizerConfig config;
    config.eos = {2};
    return config;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = make_sentencepiece_tokenizer(
      as_bytes(serialize_sentencepiece_model(small_model(true))), config(), "test.model");
};

TEST_F(RuleCacheTest, KeepsTheLastOnes) {
  RuleCache cache(*tokenizer_, tokenizer_->vocab_size());
  const auto first = cache.compile(regex("0"));
  EXPECT_EQ(cache.compile(regex("0")), first);
  for (int i = 1; i < 32; ++i) static_cast<void>(cache.compile(regex(std::to_string(i))));
  EXPECT_EQ(cache.compile(regex("0")), first);
  for (int i = 32; i < 64; ++i) static_cast<void>(cache.compile(regex(std::to_string(i))));
  EXPECT_NE(cache.compile(regex("0")), first);
}

TEST_F(RuleCacheTest, KeepsNoMoreBytesThanItMay) {
  const OutputRule large = regex("[a-z]{200}x");
  RuleCache wide(*tokenizer_, tokenizer_->vocab_size());
  const size_t bytes = wide.compile(large)->bytes();
  RuleCache cache(*tokenizer_, tokenizer_->vocab_size(), bytes + bytes / 2);
  const auto kept = cache.compile(large);
  const auto other = cache.compile(regex("[b-y]{200}z"));
  EXPECT_EQ(cache.compile(large), kept);  // one besides the last one fits
  EXPECT_EQ(cache.compile(regex("[b-y]{200}z")), other);
  static_cast<void>(cache.compile(regex("[c-x]{200}y")));  // two do not
  EXPECT_NE(cache.compile(large), kept);

  RuleCache narrow(*tokenizer_, tokenizer_->vocab_size(), 0);
  const auto last = narrow.compile(large);
  EXPECT_EQ(narrow.compile(large), last);
  static_cast<void>(narrow.compile(regex("a")));
  EXPECT_NE(narrow.compile(large), last);
}

TEST_F(RuleCacheTest, ErrorsBeginWithTheRulesName) {
  RuleCache cache(*tokenizer_, tokenizer_->vocab_size());
  OutputRule rule = regex("(");
  rule.name = "--regex";
  try {
    static_cast<void>(cache.compile(rule));
    FAIL() << "was compiled";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("--regex: ", 0), 0U) << error.what();
  }
}

}  // namespace
}  // namespace faststream
