#include "convert/llama2c/llama2c_tokenizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "support/error.h"
#include "support/utf8.h"
#include "text/tokenizer.h"
#include "unit/effort.h"
#include "unit/text/text_samples.h"
#include "unit/text/tokenizer_models.h"

namespace faststream::convert {
namespace {

constexpr std::string_view kWhere = "tok.bin";

/// A llama2.c tokenizer file as data.
struct Llama2cTokenizer {
  int32_t longest = 0;
  std::vector<std::pair<std::string, float>> tokens;
};

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string write(const Llama2cTokenizer& tokenizer) {
  std::string bytes;
  append(bytes, tokenizer.longest);
  for (const auto& [text, score] : tokenizer.tokens) {
    append(bytes, score);
    append(bytes, static_cast<int32_t>(text.size()));
    bytes += text;
  }
  return bytes;
}

Llama2cTokenizer read(const std::string& bytes, int32_t vocab_size) {
  Llama2cTokenizer tokenizer;
  std::memcpy(&tokenizer.longest, bytes.data(), 4);
  for (size_t at = 4; vocab_size > 0; --vocab_size) {
    float score = 0;
    int32_t length = 0;
    std::memcpy(&score, bytes.data() + at, 4);
    std::memcpy(&length, bytes.data() + at + 4, 4);
    tokenizer.tokens.emplace_back(bytes.substr(at + 8, static_cast<size_t>(length)), score);
    at += 8 + static_cast<size_t>(length);
  }
  return tokenizer;
}

Llama2cTokenizer synthetic() {
  Llama2cTokenizer tokenizer{12, {{"<unk>", 0}, {"\n<s>\n", 0}, {"\n</s>\n", 0}}};
  for (int byte = 0; byte < 256; ++byte) tokenizer.tokens.emplace_back(byte_name(byte), 0.0F);
  float score = 0;
  for (const char* text : {" t", "he", " the", "  ", "ll", "hell", " a", "lo", " ", "t", "h", "e",
                           "l", "o", "a", "\xC3\xA9", "\xE4\xBD\xA0"}) {
    tokenizer.tokens.emplace_back(text, score);
    score -= 1;
  }
  return tokenizer;
}

int32_t size_of(const Llama2cTokenizer& tokenizer) {
  return static_cast<int32_t>(tokenizer.tokens.size());
}

/// What run.c's encode() is documented to do: a dummy space, characters or their bytes, then the
/// best-scoring adjacent pair, the leftmost of equals, until none is left.
std::vector<int32_t> reference_encode(const Llama2cTokenizer& tokenizer, std::string_view text) {
  std::map<std::string, int32_t> ids;
  for (int32_t id = 0; id < size_of(tokenizer); ++id) ids[tokenizer.tokens[id].first] = id;
  std::vector<int32_t> result = {1};
  if (!text.empty()) result.push_back(ids.at(" "));
  while (!text.empty()) {
    const auto length = static_cast<size_t>(utf8_character(text));
    const std::string character(text.substr(0, length));
    if (ids.count(character) != 0) {
      result.push_back(ids[character]);
    } else {
      for (const char byte : character) result.push_back(static_cast<unsigned char>(byte) + 3);
    }
    text.remove_prefix(length);
  }
  while (true) {
    float best_score = -1e10F;
    size_t best = 0;
    int32_t best_id = -1;
    for (size_t i = 0; i + 1 < result.size(); ++i) {
      const auto pair =
          ids.find(tokenizer.tokens[result[i]].first + tokenizer.tokens[result[i + 1]].first);
      if (pair != ids.end() && tokenizer.tokens[pair->second].second > best_score) {
        best_score = tokenizer.tokens[pair->second].second;
        best = i;
        best_id = pair->second;
      }
    }
    if (best_id < 0) return result;
    result[best] = best_id;
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::unique_ptr<Tokenizer> load(const std::string& file, int32_t vocab_size) {
  TokenizerConfig config;
  config.bos = 1;
  config.prefix = {1};
  config.eos = {2};
  return make_sentencepiece_tokenizer(
      as_bytes(sentencepiece_from_llama2c(as_bytes(file), vocab_size, kWhere)), config, kWhere);
}

std::string refusal(const std::string& file, int32_t vocab_size) {
  try {
    sentencepiece_from_llama2c(as_bytes(file), vocab_size, kWhere);
  } catch (const Error& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("tok.bin: ")) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_reference_encoding(const std::string& file, int32_t vocab_size) {
  const auto tokenizer = load(file, vocab_size);
  const Llama2cTokenizer reference = read(file, vocab_size);
  size_t compared = 0;
  for (const std::string& text : text_samples()) {
    // The reference is quadratic and takes C strings; see the header for what else differs.
    if (text.size() > 2000 || !is_valid_utf8(text) || text.find('\0') != std::string::npos ||
        text.find("\xE2\x96\x81") != std::string::npos) {
      continue;
    }
    ASSERT_EQ(tokenizer->encode(text), reference_encode(reference, text)) << text;
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    ++compared;
  }
  EXPECT_GE(compared, 200U);
}

TEST(Llama2cTokenizer, EncodesAsItsOwnProgram) {
  expect_reference_encoding(write(synthetic()), size_of(synthetic()));
}

TEST(Llama2cTokenizer, EncodesAsItsOwnProgramWithStories260k) {
  const auto file = read_shared("models/stories260K/tok512.bin");
  if (!file) GTEST_SKIP() << "FASTSTREAM_SHARED has no models/stories260K/tok512.bin";
  expect_reference_encoding(*file, 512);
}

TEST(Llama2cTokenizer, GivesTokensTheirText) {
  const Llama2cTokenizer source = synthetic();
  const auto tokenizer = load(write(source), size_of(source));
  EXPECT_EQ(tokenizer->vocab_size(), size_of(source));
  EXPECT_EQ(tokenizer->token_bytes(1), "");
  EXPECT_EQ(tokenizer->token_bytes(2), "");
  EXPECT_EQ(tokenizer->token_bytes(3 + 'A'), "A");
  EXPECT_EQ(tokenizer->token_bytes(261), " the");
}

TEST(Llama2cTokenizer, RefusesAFileTruncatedAnywhere) {
  const std::string file = write(synthetic());
  for (size_t length = 0; length < file.size(); length += kSanitized ? 5 : 1) {
    ASSERT_NE(refusal(file.substr(0, length), size_of(synthetic())), "accepted") << length;
  }
  EXPECT_EQ(refusal(file, size_of(synthetic())), "accepted");
}

TEST(Llama2cTokenizer, RefusesAVocabularyOfAnotherSize) {
  const std::string file = write(synthetic());
  EXPECT_EQ(
      refusal(file, size_of(synthetic()) + 1),
      "tok.bin: the llama2.c tokenizer ends too early for its checkpoint's vocabulary; use the "
      "tokenizer .bin that belongs to the checkpoint.");
  EXPECT_EQ(refusal(file, size_of(synthetic()) - 1),
            "tok.bin: the llama2.c tokenizer has 11 bytes after the last of the checkpoint's 275 "
            "tokens; use the tokenizer .bin that belongs to the checkpoint.");
  for (const int32_t size : {-1, 0, 258, std::numeric_limits<int32_t>::max()}) {
    EXPECT_NE(refusal(file, size), "accepted") << size;
  }
}

TEST(Llama2cTokenizer, RefusesTokensThatMakeNoSense) {
  const auto with = [](auto change) {
    Llama2cTokenizer tokenizer = synthetic();
    change(tokenizer);
    return refusal(write(tokenizer), size_of(tokenizer));
  };
  EXPECT_NE(with([](auto& t) { t.tokens[100].first = "A"; }).find("token 100"), std::string::npos);
  EXPECT_NE(with([](auto& t) { t.tokens[260].first = "\xC3"; }).find("not UTF-8"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.tokens[260].first = ""; }).find("a length of 0"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.tokens[260].first = "0123456789abc"; }).find("a length of 13"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.tokens[260] = t.tokens[261]; })
                .find("token 261 of the llama2.c "
                      "tokenizer repeats token 260"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) {
              t.tokens[260].second = std::numeric_limits<float>::infinity();
            }).find("score"),
            std::string::npos);
  EXPECT_NE(with([](auto& t) { t.longest = -1; }), "accepted");
}

TEST(Llama2cTokenizer, RefusesAbsurdLengths) {
  for (const int32_t length :
       {-1, std::numeric_limits<int32_t>::min(), 1 << 30, std::numeric_limits<int32_t>::max()}) {
    std::string file = write(synthetic());
    const int32_t longest = std::numeric_limits<int32_t>::max();
    std::memcpy(file.data(), &longest, 4);
    std::memcpy(file.data() + 8, &length, 4);
    EXPECT_NE(refusal(file, size_of(synthetic())), "accepted") << length;
  }
}

}  // namespace
}  // namespace faststream::convert
