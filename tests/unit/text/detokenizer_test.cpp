#include <gtest/gtest.h>

#include <random>

#include "support/utf8.h"
#include "text/tokenizer.h"
#include "unit/text/text_samples.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

constexpr int32_t kByte = 3;  // id of <0x00>

std::unique_ptr<Tokenizer> spaced_tokenizer(const SentencePieceModel& model,
                                            bool keep_leading_space = false) {
  TokenizerConfig config;
  config.bos = 1;
  config.prefix = {1};
  config.eos = {2};
  config.keep_leading_space = keep_leading_space;
  return make_sentencepiece_tokenizer(as_bytes(serialize_sentencepiece_model(model)), config,
                                      "test.model");
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool at_start = true) {
  Detokenizer detokenizer(tokenizer, at_start);
  std::string text;
  for (const int32_t id : ids) {
    const std::string more = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(more)) << "half a character after id " << id;
    text += more;
  }
  return text + detokenizer.finish();
}

std::vector<int32_t> random_ids(std::mt19937& random, int32_t vocab) {
  std::vector<int32_t> ids(random() % 40);
  for (int32_t& id : ids) {
    switch (random() % 8) {
      case 0:
        id = static_cast<int32_t>(random() % 3);
        break;
      case 1:
        id = vocab + static_cast<int32_t>(random() % 5) - 2;
        break;
      default:
        id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    }
  }
  return ids;
}

TEST(Detokenizer, PrintsACharacterWhenItsLastByteHasCome) {
  const auto tokenizer = spaced_tokenizer(small_model(true));
  Detokenizer detokenizer(*tokenizer, false);
  EXPECT_EQ(detokenizer.push(kByte + 0xF0), "");
  EXPECT_EQ(detokenizer.push(kByte + 0x9F), "");
  EXPECT_EQ(detokenizer.push(kByte + 0x98), "");
  EXPECT_EQ(detokenizer.push(kByte + 0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ReplacesBytesThatAreNoCharacter) {
  const auto tokenizer = spaced_tokenizer(small_model(true));
  EXPECT_EQ(stream(*tokenizer, {kByte + 0x80}), "\xEF\xBF\xBD");
  EXPECT_EQ(stream(*tokenizer, {kByte + 0xE2, kByte + 'x'}), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream(*tokenizer, {kByte + 0xE2}), "\xEF\xBF\xBD");
  EXPECT_EQ(stream(*tokenizer, {kByte + 0xC3, 2, kByte + 0xA9}), "\xEF\xBF\xBD\xEF\xBF\xBD")
      << "a control token ends the character";
}

TEST(Detokenizer, DropsTheDummyPrefixOnlyWhereATextStarts) {
  const auto tokenizer = spaced_tokenizer(small_model(true));
  const std::vector<int32_t> ids = tokenizer->encode("the the");
  EXPECT_EQ(stream(*tokenizer, ids, true), "the the");
  EXPECT_EQ(stream(*tokenizer, ids, false), " the the");
  EXPECT_EQ(stream(*tokenizer, tokenizer->encode("  the")), "  the");
  EXPECT_EQ(stream(*spaced_tokenizer(small_model(true), true), ids), " the the")
      << "keep_leading_space";
  const int32_t unknown = 0;
  EXPECT_EQ(stream(*tokenizer, {1, unknown}), " \xE2\x81\x87 ") << "this space is not the prefix's";
  EXPECT_EQ(stream(*tokenizer, {1, kByte + ' ', kByte + 'x'}), " x") << "nor is this";
}

TEST(Detokenizer, EqualsDecodeOnTexts) {
  const auto tokenizer = spaced_tokenizer(small_model(true));
  for (const std::string& text : text_samples()) {
    const std::vector<int32_t> ids = tokenizer->encode(text);
    ASSERT_EQ(stream(*tokenizer, ids), tokenizer->decode(ids)) << text;
  }
}

TEST(Detokenizer, EqualsDecodeOnRandomTokensOfAllKindsOfModels) {
  std::mt19937 random(3);
  for (const bool byte_fallback : {true, false}) {
    for (const bool prefix : {true, false}) {
      for (const bool remove_extra : {true, false}) {
        SentencePieceModel model = small_model(byte_fallback);
        model.add_dummy_prefix = prefix;
        model.remove_extra_whitespaces = remove_extra;
        const auto tokenizer = spaced_tokenizer(model);
        for (int round = 0; round < 1000; ++round) {
          const std::vector<int32_t> ids = random_ids(random, tokenizer->vocab_size());
          ASSERT_EQ(stream(*tokenizer, ids), tokenizer->decode(ids))
              << ::testing::PrintToString(ids) << " byte_fallback " << byte_fallback << " prefix "
              << prefix << " remove_extra " << remove_extra;
        }
      }
    }
  }
}

}  // namespace
}  // namespace faststream
