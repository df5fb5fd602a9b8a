#include "convert/tokenizers/gguf_tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "convert/gguf/gguf_file.h"
#include "unit/convert/gguf_files.h"
#include "unit/text/tokenizer_models.h"

namespace faststream::convert {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

GgufTokenizer read(const GgufBuilder& gguf) {
  const std::string bytes = gguf.bytes();
  return tokenizer_from_gguf(parse_gguf(
                                 [&](uint64_t offset, std::span<std::byte> out) {
                                   std::memcpy(out.data(), bytes.data() + offset, out.size());
                                 },
                                 bytes.size(), "w.gguf")
                                 .metadata);
}

std::string read_error(const GgufBuilder& gguf) {
  return error_of([&] { read(gguf); });
}

GgufBuilder spm() {
  GgufBuilder gguf;
  gguf.add("tokenizer.ggml.model", "llama");
  add_gguf_tokens(gguf, {"▁", "a", "b", "ab", "▁ab"});
  return gguf;
}

GgufBuilder bpe() {
  GgufBuilder gguf;
  gguf.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "llama-bpe");
  gguf.add("tokenizer.ggml.tokens",
           std::vector<std::string>{"a", "b", "Ġ", "ab", "Ġab", "<|im_end|>", "<tool>", "<|x|>"});
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1, 1, 1, 3, 4, 3});
  gguf.add("tokenizer.ggml.merges", std::vector<std::string>{"a b", "Ġ ab"});
  gguf.add("tokenizer.ggml.bos_token_id", 7U).add("tokenizer.ggml.eos_token_id", 7U);
  return gguf;
}

Ids encode(const GgufTokenizer& tokenizer, std::string_view text) {
  return make_sentencepiece_tokenizer(as_bytes(tokenizer.sentencepiece), tokenizer.config, "test")
      ->encode(text);
}

TEST(GgufTokenizer, IsASentencePieceModelForLlama) {
  const GgufTokenizer tokenizer = read(spm());
  EXPECT_FALSE(tokenizer.description);
  EXPECT_EQ(tokenizer.config.bos, 1);
  EXPECT_EQ(tokenizer.config.eos, Ids{2});
  EXPECT_EQ(encode(tokenizer, "ab b"), (Ids{1, 7, 3, 5}));
}

TEST(GgufTokenizer, HeedsWhatTheMetadataSaysOfSpaces) {
  GgufBuilder gguf = spm();
  gguf.add("tokenizer.ggml.add_space_prefix", false).add("tokenizer.ggml.add_bos_token", false);
  EXPECT_EQ(encode(read(gguf), "ab  b"), (Ids{6, 3, 3, 5}));
  gguf.add("tokenizer.ggml.remove_extra_whitespaces", true);
  EXPECT_EQ(encode(read(gguf), "ab  b"), (Ids{6, 3, 5}));
}

TEST(GgufTokenizer, FindsUserDefinedTokensOfSpacesAsGemmaHasThem) {
  const auto with = [](const std::string& eighth, const std::string& ninth) {
    GgufBuilder gguf = spm();
    gguf.add("tokenizer.ggml.add_space_prefix", false).add("tokenizer.ggml.add_bos_token", false);
    add_gguf_tokens(gguf, {"▁", "a", "b", "ab", "▁ab", eighth, ninth});
    gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32,
                            {2, 3, 3, 1, 1, 1, 1, 1, 4, 4});
    return gguf;
  };
  EXPECT_EQ(encode(read(with("  ", "   ")), "  ab ab   b"), (Ids{8, 6, 7, 9, 5}));
  EXPECT_TRUE(says(read_error(with("  ", "▁ ")), "token 9", "repeats token 8"));
}

TEST(GgufTokenizer, HasOneUnknownPiece) {
  GgufBuilder gguf = spm();
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {2, 3, 3, 1, 1, 2, 1, 1});
  EXPECT_EQ(encode(read(gguf), "b"), (Ids{1, 3, 0})) << "b is a second one";
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 3, 3, 1, 1, 1, 1, 1});
  EXPECT_EQ(encode(read(gguf), "z"), (Ids{1, 3, 0})) << "none is called so";
}

TEST(GgufTokenizer, IsAUnigramModelForT5) {
  GgufBuilder gguf = spm();
  gguf.add("tokenizer.ggml.model", "t5");
  gguf.add("tokenizer.ggml.unknown_token_id", 0U).add("tokenizer.ggml.eos_token_id", 2U);
  const GgufTokenizer tokenizer = read(gguf);
  EXPECT_FALSE(tokenizer.config.bos);
  EXPECT_EQ(encode(tokenizer, "ab"), (Ids{7, 2}));
  gguf.add_array<uint8_t>("tokenizer.ggml.precompiled_charsmap", GgufType::u8, {1, 2, 3});
  EXPECT_TRUE(says(error_of([&] { encode(read(gguf), "ab"); }), "normalization rules"));
}

TEST(GgufTokenizer, IsADescriptionForBytePairs) {
  const GgufTokenizer tokenizer = read(bpe());
  EXPECT_EQ(tokenizer.config.bos, 7);
  EXPECT_EQ(tokenizer.config.eos, (Ids{7, 5})) << "the metadata's first";
  EXPECT_TRUE(tokenizer.config.adds_bos()) << "as Llama 3";
  ASSERT_TRUE(tokenizer.description);
  const TokenizerDescription& description = *tokenizer.description;
  EXPECT_EQ(description.vocabulary[4], "Ġab");
  EXPECT_EQ(description.merges, (std::vector<std::array<int32_t, 2>>{{0, 1}, {2, 3}}));
  EXPECT_TRUE(description.pipeline["model"]["ignore_merges"]);
  EXPECT_EQ(description.pipeline["pre_tokenizer"]["pretokenizers"].size(), 2U);
  ASSERT_EQ(description.added_tokens.size(), 3U);
  EXPECT_EQ(description.added_tokens[0].text, "<|im_end|>");
  EXPECT_TRUE(description.added_tokens[0].special);
  EXPECT_EQ(description.added_tokens[1].text, "<tool>");
  EXPECT_FALSE(description.added_tokens[1].special) << "found in users' texts";
}

TEST(GgufTokenizer, EndsATextWhereLlamaCppDoes) {
  GgufBuilder gguf = bpe();
  gguf.add("tokenizer.ggml.tokens",
           std::vector<std::string>{"a", "<|end|>", "<|return|>", "<|call|>", "<|eom_id|>", "b",
                                    "<|channel|>"});
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 3, 3, 1, 3, 1, 3});
  gguf.add("tokenizer.ggml.merges", std::vector<std::string>());
  gguf.add("tokenizer.ggml.eos_token_id", 2U).add("tokenizer.ggml.eot_token_id", 5U);
  const GgufTokenizer tokenizer = read(gguf);
  EXPECT_EQ(tokenizer.config.eos, (Ids{2, 5, 3, 4})) << "<|end|> is something else here";
  std::map<std::string, bool> special;
  for (const AddedTokenRule& token : tokenizer.description->added_tokens) {
    special[token.text] = token.special;
  }
  EXPECT_EQ(special, (std::map<std::string, bool>{{"<|end|>", false},
                                                  {"<|return|>", true},
                                                  {"<|call|>", true},
                                                  {"<|eom_id|>", true},
                                                  {"<|channel|>", false}}));
}

TEST(GgufTokenizer, LeavesATokenThatMergesMakeAnOrdinaryOne) {
  GgufBuilder gguf = bpe();
  gguf.add("tokenizer.ggml.tokens", std::vector<std::string>{"</s", ">", "</s>"});
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1});
  gguf.add("tokenizer.ggml.merges", std::vector<std::string>{"</s >"});
  const GgufTokenizer tokenizer = read(gguf);
  EXPECT_EQ(tokenizer.config.eos, Ids{2});
  EXPECT_TRUE(tokenizer.description->added_tokens.empty());
}

TEST(GgufTokenizer, IsADescriptionForBert) {
  GgufBuilder gguf;
  gguf.add("tokenizer.ggml.model", "bert");
  gguf.add("tokenizer.ggml.tokens",
           std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁play", "ing"});
  gguf.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {3, 3, 3, 3, 1, 1});
  gguf.add("tokenizer.ggml.unknown_token_id", 1U).add("tokenizer.ggml.cls_token_id", 2U);
  gguf.add("tokenizer.ggml.seperator_token_id", 3U);
  const GgufTokenizer tokenizer = read(gguf);
  EXPECT_EQ(tokenizer.config.bos, 2);
  EXPECT_EQ(tokenizer.config.eos.front(), 3);
  EXPECT_EQ(tokenizer.config.suffix.size(), 1U);
  EXPECT_EQ(tokenizer.description->vocabulary[4], "play");
  EXPECT_EQ(tokenizer.description->vocabulary[5], "##ing");
  EXPECT_TRUE(tokenizer.description->added_tokens[1].in_model) << "[UNK]";
  EXPECT_EQ(tokenizer.description->pipeline["model"]["unk_token"], "[UNK]");
  EXPECT_EQ(tokenizer.config.between, Ids{3});
  // As files of today say it: nothing changes for single texts.
  gguf.add("tokenizer.ggml.add_sep_token", false).add("tokenizer.ggml.add_eos_token", true);
  EXPECT_EQ(read(gguf).config.suffix, Ids{3});
  EXPECT_EQ(read(gguf).config.between, Ids{3});
  gguf.add("tokenizer.ggml.add_sep_token", true);
  EXPECT_EQ(read(gguf).config.between, (Ids{3, 3})) << "RoBERTa's";
}

TEST(GgufTokenizer, PairsHaveARuleWhereMetadataOrTheirKindSaySo) {
  GgufBuilder gguf = bpe();
  EXPECT_FALSE(read(gguf).config.between);
  gguf.add("tokenizer.ggml.add_sep_token", true).add("tokenizer.ggml.seperator_token_id", 5U);
  EXPECT_EQ(read(gguf).config.between, Ids{5});
  gguf.remove("tokenizer.ggml.seperator_token_id").add("tokenizer.ggml.add_eos_token", true);
  EXPECT_EQ(read(gguf).config.between, (Ids{7, 7})) << "its end separates where nothing else does";
}

TEST(GgufTokenizer, SaysWhatIsWrongWithTheMetadata) {
  const auto error_with = [](const char* key, auto value) {
    GgufBuilder gguf = bpe();
    gguf.add(key, value);
    return read_error(gguf);
  };
  using Texts = std::vector<std::string>;
  EXPECT_TRUE(says(error_with("tokenizer.ggml.model", "rwkv"), "w.gguf", "\"rwkv\""));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.pre", "new"), "tokenizer.ggml.pre", "\"new\""));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.merges", Texts{"ab"}), "\"ab\"", "two tokens"));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.merges", Texts{"a z"}), "\"a z\""));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.merges", Texts{"b a"}), "\"b a\"", "no token"));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.tokens", Texts{}), "tokens", "missing"));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.tokens", Texts{"a", "a"}), "token 1", "token 0"));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.tokens", Texts{"\xff"}), "token 0", "UTF-8"));
  EXPECT_TRUE(says(error_with("tokenizer.ggml.tokens", Texts{"a"}), "token_type", "8 types"));
  GgufBuilder gguf = bpe();
  EXPECT_TRUE(says(read_error(gguf.remove("tokenizer.ggml.merges")), "merges", "missing"));
  gguf = spm();
  EXPECT_TRUE(says(read_error(gguf.remove("tokenizer.ggml.scores")), "scores", "missing"));
  gguf.add("tokenizer.ggml.scores", Texts{"0", "1"});
  EXPECT_TRUE(says(read_error(gguf), "scores", "not an array of numbers"));
}

}  // namespace
}  // namespace faststream::convert
