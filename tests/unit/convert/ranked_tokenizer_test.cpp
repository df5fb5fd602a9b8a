// tiktoken's files and tekken.json.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "convert/tokenizers/ranked_bpe.h"
#include "convert/tokenizers/tekken.h"
#include "convert/tokenizers/tiktoken.h"
#include "support/base64.h"
#include "text/tokenizer/byte_level.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63U];
    }
  }
  return text;
}

// All bytes, then `more`.
std::vector<std::string> byte_tokens(const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

TEST(Base64, DecodesAndRefuses) {
  for (const std::string bytes : {"a", "ab", "abc", "abcd", "\xff\xfe\x01"}) {
    EXPECT_EQ(decode_base64(base64(bytes)), bytes);
  }
  EXPECT_EQ(decode_base64(""), "");
  for (const char* text : {"a", "abc", "ab=c", "YQ", "YR==", "Y===", "Y Q=", "====", "YQ==YQ=="}) {
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
  }
}

TEST(RankedBpe, SpellsBytesAsGpt2Does) {
  EXPECT_EQ(to_byte_level(" a\n\x7f\xad\xff"), "ĠaĊ\u0121\u0143ÿ");
}

TEST(RankedBpe, MergesEveryPairThatIsAToken) {
  const TokenizerDescription description = describe_ranked_bpe(
      byte_tokens({"ab", "bc", "abc"}), 10, {{2, "<s>"}}, *find_pretokenizer("tekken"), "t");
  const int32_t a = 10 + 'a';
  EXPECT_EQ(description.merges, (std::vector<std::array<int32_t, 2>>{
                                    {a, a + 1}, {a + 1, a + 2}, {a, 10 + 257}, {10 + 256, a + 2}}));
  EXPECT_EQ(description.vocabulary[10 + 258], "abc");
  EXPECT_EQ(description.vocabulary[2], "<s>");
  EXPECT_EQ(description.vocabulary[3], "") << "an id without a token";
  ASSERT_EQ(description.added_tokens.size(), 1U);
  EXPECT_TRUE(description.added_tokens[0].special);
}

TEST(RankedBpe, RefusesTokensThatAreNone) {
  const auto error = [](const std::vector<std::string>& tokens, int32_t special) {
    return error_of([&] {
      describe_ranked_bpe(tokens, 1, {{special, "<s>"}}, *find_pretokenizer("tekken"), "t");
    });
  };
  EXPECT_TRUE(says(error(byte_tokens({"ab", "ab"}), 0), "token 257", "repeats token 256"));
  EXPECT_TRUE(says(error(byte_tokens({""}), 0), "token 256", "0 bytes"));
  EXPECT_TRUE(says(error(byte_tokens({std::string(1025, 'a')}), 0), "1025 bytes"));
  EXPECT_TRUE(says(error({"a"}, 0), "no token for the byte 0"));
  EXPECT_TRUE(says(error(byte_tokens({}), 5), "\"<s>\"", "another token"));
}

TEST(Tiktoken, IsKnownByItsFirstLine) {
  EXPECT_TRUE(is_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_TRUE(is_tiktoken("IQ== 0\r\nIg== 1\r\n"));
  for (const char* text : {"", "IQ==", "IQ== 1\n", "IQ== x\n", " 0\n", "{}", "\n\x05<unk>"}) {
    EXPECT_FALSE(is_tiktoken(text)) << text;
  }
}

// Lines of a vocabulary of `size`: bytes, then three-letter tokens of other bytes.
std::string tiktoken_file(size_t size) {
  std::string file;
  for (size_t rank = 0; rank < size; ++rank) {
    const std::string token =
        rank < 256 ? std::string(1, static_cast<char>(rank))
                   : std::string{static_cast<char>(rank >> 16 & 255), static_cast<char>(rank >> 8),
                                 static_cast<char>(rank)};
    file += base64(token) + " " + std::to_string(rank) + "\n";
  }
  return file;
}

TEST(Tiktoken, IsLlama3OrQwenByItsSize) {
  const TokenizerDescription llama = parse_tiktoken(tiktoken_file(128000), "t");
  EXPECT_EQ(llama.vocabulary.size(), 128256U);
  EXPECT_EQ(llama.vocabulary[128000], "<|begin_of_text|>");
  EXPECT_EQ(llama.vocabulary[128009], "<|eot_id|>");
  EXPECT_EQ(llama.vocabulary[128255], "<|reserved_special_token_247|>");
  EXPECT_TRUE(llama.pipeline["model"]["ignore_merges"]);
  const TokenizerDescription qwen = parse_tiktoken(tiktoken_file(151643), "t");
  EXPECT_EQ(qwen.vocabulary.size(), 151851U);
  EXPECT_EQ(qwen.vocabulary[151645], "<|im_end|>");
  EXPECT_EQ(qwen.pipeline["normalizer"]["type"], "NFC");
}

TEST(Tiktoken, SaysWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_tiktoken(text, "t.model"); });
  };
  EXPECT_TRUE(says(error(tiktoken_file(300)), "t.model", "300 tokens", "tokenizer.json"));
  EXPECT_TRUE(says(error("IQ== 0\nIg== 2\n"), "line 2"));
  EXPECT_TRUE(says(error("IQ== 0\n?? 1\n"), "line 2"));
}

json tekken_file() {
  json vocab = json::array();
  for (const std::string& token : byte_tokens({"ab", "cd"})) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", base64(token)}, {"token_str", ""}});
  }
  return {{"config",
           {{"pattern", "a|b"}, {"default_vocab_size", 281}, {"default_num_special_tokens", 24}}},
          {"vocab", vocab}};
}

TEST(Tekken, PutsSpecialTokensFirstAndFillsTheVocabulary) {
  const TokenizerDescription tekken = parse_tekken(tekken_file().dump(), "t");
  ASSERT_EQ(tekken.vocabulary.size(), 281U);
  EXPECT_EQ(tekken.vocabulary[1], "<s>");
  EXPECT_EQ(tekken.vocabulary[3], "[INST]");
  EXPECT_EQ(tekken.vocabulary[20], "<SPECIAL_20>");
  EXPECT_EQ(tekken.vocabulary[24 + 'a'], "a");
  EXPECT_EQ(tekken.vocabulary[280], "ab") << "and \"cd\" has no room";
  EXPECT_EQ(tekken.pipeline["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], "a|b");
  json named = tekken_file();
  named["special_tokens"] = {{{"rank", 1}, {"token_str", "<bos>"}, {"is_control", true}}};
  EXPECT_EQ(parse_tekken(named.dump(), "t").vocabulary[1], "<bos>");
  EXPECT_EQ(parse_tekken(named.dump(), "t").vocabulary[2], "<SPECIAL_2>");
}

TEST(Tekken, SaysWhatIsWrong) {
  const auto error = [](const char* path, const json& value) {
    json file = tekken_file();
    file[json::json_pointer(path)] = value;
    return error_of([&] { parse_tekken(file.dump(), "tekken.json"); });
  };
  EXPECT_TRUE(says(error("/vocab", 3), "tekken.json", "\"vocab\""));
  EXPECT_TRUE(says(error("/vocab/5/rank", 6), "\"vocab[5].rank\""));
  EXPECT_TRUE(says(error("/vocab/5/token_bytes", "?"), "\"vocab[5].token_bytes\"", "Base64"));
  EXPECT_TRUE(says(error("/config/default_vocab_size", 1e15), "default_vocab_size"));
  EXPECT_TRUE(says(error("/config/default_num_special_tokens", -1), "default_num_special_tokens"));
  EXPECT_TRUE(says(error("/special_tokens", {{{"rank", 99}, {"token_str", "x"}}}), "rank"));
  EXPECT_TRUE(says(error("/special_tokens",
                         {{{"rank", 0}, {"token_str", "x"}}, {{"rank", 1}, {"token_str", "x"}}}),
                   "\"x\"", "twice"));
  EXPECT_TRUE(says(error_of([] { parse_tekken("{}", "t"); }), "\"config\""));
}

}  // namespace
}  // namespace faststream::convert
