#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>

#include "support/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer/compiled_tokenizer.h"
#include "text/tokenizer/pattern.h"

namespace faststream {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

/// Byte-level BPE: the 256 bytes (id: the byte), then "he" 256, "ll" 257, "hell" 258, "hello" 259,
/// the special tokens <|a|> 260 and <|b|> 261, and <tool> 262.
TokenizerDescription byte_level() {
  TokenizerDescription tokenizer;
  tokenizer.pipeline = json::parse(R"({
    "model": {"type": "BPE"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"}})");
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t code = printable ? byte : next++;
    std::string text(1, static_cast<char>(code));
    if (code >= 0x80) {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    tokenizer.vocabulary.push_back(text);
  }
  for (const char* text : {"he", "ll", "hell", "hello", "<|a|>", "<|b|>", "<tool>"}) {
    tokenizer.vocabulary.emplace_back(text);
  }
  tokenizer.merges = {{'h', 'e'}, {'l', 'l'}, {256, 257}, {258, 'o'}};
  const auto add = [&](int32_t id, bool special) {
    AddedTokenRule rule;
    rule.id = id;
    rule.text = tokenizer.vocabulary[static_cast<size_t>(id)];
    rule.special = special;
    tokenizer.added_tokens.push_back(rule);
  };
  add(260, true);
  add(261, true);
  add(262, false);
  return tokenizer;
}

/// A tokenizer and the tables that it uses.
struct Compiled {
  explicit Compiled(const TokenizerDescription& description, const TokenizerConfig& config = {})
      : tables(compile_tokenizer(description, "test")),
        tokenizer(make_compiled_tokenizer(std::as_bytes(std::span(tables)), config, "test")) {}
  const Tokenizer* operator->() const { return tokenizer.get(); }

  std::string tables;
  std::unique_ptr<Tokenizer> tokenizer;
};

std::string table_refusal(const TokenizerDescription& description) {
  try {
    compile_tokenizer(description, "test");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

Ids stretches(const Compiled& compiled, const std::vector<Stretch>& parts) {
  return compiled->encode_stretches(parts);
}

TEST(CompiledTokenizer, FindsSpecialTokensInTemplatesAndNotInTexts) {
  const Compiled compiled(byte_level());
  EXPECT_EQ(stretches(compiled, {{"<|a|>", true}, {"hello", false}, {"<|b|>", true}}),
            (Ids{260, 259, 261}));
  EXPECT_EQ(compiled->encode("<|a|>"), (Ids{'<', '|', 'a', '|', '>'}));
  EXPECT_EQ(stretches(compiled, {{"<|a|>", true}, {"<|b|>", false}}),
            (Ids{260, '<', '|', 'b', '|', '>'}));
  EXPECT_EQ(compiled->encode("<tool>"), (Ids{262})) << "it is not special";
}

TEST(CompiledTokenizer, TakesASpecialTokenOnlyWhereAllOfItIsFromTheTemplate) {
  const Compiled compiled(byte_level());
  EXPECT_EQ(stretches(compiled, {{"<|", true}, {"a", false}, {"|>", true}}),
            (Ids{'<', '|', 'a', '|', '>'}));
  EXPECT_EQ(stretches(compiled, {{"<|a", true}, {"|>", true}}), (Ids{260}));
  EXPECT_EQ(stretches(compiled, {{"<|a|", true}, {"", false}, {">", true}}), (Ids{260}));
}

TEST(CompiledTokenizer, SplitsWhatLiesBetweenSpecialTokensAsOneText) {
  const Compiled compiled(byte_level());
  EXPECT_EQ(stretches(compiled, {{"<|a|>he", true}, {"ll", false}, {"o", true}}), (Ids{260, 259}));
}

TEST(CompiledTokenizer, FindsNormalizedSpecialTokensAsTheyAreWrittenInMixedTexts) {
  TokenizerDescription description = byte_level();
  description.pipeline["normalizer"] = {{"type", "Lowercase"}};
  description.added_tokens[0].normalized = true;
  const Compiled compiled(description);
  EXPECT_EQ(stretches(compiled, {{"<|A|>", true}}), (Ids{260}));
  EXPECT_EQ(stretches(compiled, {{"<|a|>", true}, {"<|A|>", false}}),
            (Ids{260, '<', '|', 'a', '|', '>'}));
}

TEST(CompiledTokenizer, PutsPrefixAndSuffixAroundATextOnly) {
  const TokenizerConfig config{.bos = 260, .eos = {261}, .prefix = {260, 5}, .suffix = {261}};
  const Compiled compiled(byte_level(), config);
  EXPECT_EQ(compiled->encode("hello"), (Ids{260, 5, 259, 261}));
  EXPECT_EQ(compiled->encode("hello", false), (Ids{259}));
  EXPECT_EQ(compiled->encode_continuation("hello"), (Ids{259}));
  EXPECT_TRUE(compiled->config().adds_bos());
}

TEST(CompiledTokenizer, PutsNoSpaceBeforeAContinuation) {
  TokenizerDescription description = byte_level();
  description.pipeline["pre_tokenizer"]["add_prefix_space"] = true;
  const Compiled compiled(description);
  EXPECT_EQ(compiled->encode("hello"), (Ids{' ', 259}));
  EXPECT_EQ(compiled->encode_continuation("hello"), (Ids{259}));
  EXPECT_EQ(compiled->encode_continuation(" hello"), (Ids{' ', 259}));
}

TEST(CompiledTokenizer, TakesBytesThatAreNoCharacterAsReplacementCharacters) {
  const Compiled compiled(byte_level());
  const Ids replacement = {0xEF, 0xBF, 0xBD};
  EXPECT_EQ(compiled->encode("\xFF"), replacement);
  EXPECT_EQ(compiled->encode("\xE2\x96").size(), 6U);
  EXPECT_EQ(compiled->encode(std::string_view("\0", 1)), (Ids{0}));
}

TEST(CompiledTokenizer, StreamsWholeCharactersAndNoSpecialTokens) {
  const Compiled compiled(byte_level());
  Detokenizer detokenizer(*compiled.tokenizer, true);
  EXPECT_EQ(detokenizer.push(259), "hello");
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.push(260), "");
  EXPECT_EQ(detokenizer.push(0xA9), "\xC3\xA9");
  EXPECT_EQ(detokenizer.push(-1), "");
  EXPECT_EQ(detokenizer.push(1'000'000), "");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push(0x96), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD") << "one for the two, as Rust and Python have it";
}

TEST(CompiledTokenizer, StreamsSpecialTokensWhereTheyAreShown) {
  const Compiled compiled(byte_level());
  Detokenizer detokenizer(*compiled.tokenizer, true, {.all = true});
  EXPECT_EQ(detokenizer.push(260), "<|a|>");
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.push(260), "\xEF\xBF\xBD<|a|>") << "which ends a character";
  EXPECT_EQ(detokenizer.push(259), "hello");
}

TEST(CompiledTokenizer, StreamsSomeSpecialTokens) {
  const Compiled compiled(byte_level());
  Detokenizer detokenizer(*compiled.tokenizer, true, {.some = {261}});
  EXPECT_EQ(detokenizer.push(260), "");
  EXPECT_EQ(detokenizer.push(261), "<|b|>");
}

TEST(CompiledTokenizer, ParsesSpecialTokensInATextWhereAsked) {
  const TokenizerConfig config{.bos = 260, .eos = {261}, .prefix = {260, 5}, .suffix = {261}};
  const Compiled compiled(byte_level(), config);
  EXPECT_EQ(compiled->encode_parsing_special("hello<|b|>!"), (Ids{260, 5, 259, 261, '!', 261}));
  EXPECT_EQ(compiled->encode_parsing_special("<|a|>\x05hello<|b|>"), (Ids{260, 5, 259, 261}));
  EXPECT_EQ(compiled->encode_parsing_special("<|a|>"), (Ids{260, 5, 260, 261}));
  EXPECT_EQ(compiled->encode_parsing_special(""), (Ids{260, 5, 261}));
}

TEST(CompiledTokenizer, FindsTokensByTheirSpelling) {
  const Compiled compiled(byte_level());
  EXPECT_EQ(compiled->find_token("hello"), 259);
  EXPECT_EQ(compiled->find_token("<|b|>"), 261);
  EXPECT_EQ(compiled->find_token("\xC4\xA0"), ' ') << "the byte alphabet's space";
  EXPECT_EQ(compiled->find_token("hi"), std::nullopt);
  EXPECT_EQ(compiled->find_token(""), std::nullopt);
  EXPECT_EQ(compiled->token_bytes(' '), " ");
  EXPECT_EQ(compiled->token_bytes(0xFF), "\xFF");
  EXPECT_EQ(compiled->token_bytes(260), "");
}

TEST(CompiledTokenizer, GivesTheSameTokensToALongWordAsToItsParts) {
  const Compiled compiled(byte_level());
  std::string word;
  Ids expected;
  for (int i = 0; i < 1000; ++i) {
    word += i % 3 == 0 ? "hello" : "llhe";
    const Ids part = i % 3 == 0 ? Ids{259} : Ids{257, 256};
    expected.insert(expected.end(), part.begin(), part.end());
  }
  // "llhe" before "llhe" makes "hell".
  const Ids ids = compiled->encode(word);
  EXPECT_EQ(compiled->decode(ids), word);
  EXPECT_LE(ids.size(), expected.size());
  EXPECT_GE(static_cast<int64_t>(ids.size()), compiled->min_tokens(word, kCountAll));
}

TEST(CompiledTokenizer, NamesThePartThatIsNotSupported) {
  const std::vector<std::pair<const char*, const char*>> parts = {{"normalizer", "Rot13"},
                                                                  {"pre_tokenizer", "Wormhole"},
                                                                  {"decoder", "Rot13"},
                                                                  {"model", "GPT"}};
  for (const auto& [part, type] : parts) {
    TokenizerDescription description = byte_level();
    description.pipeline[part] = {{"type", type}};
    EXPECT_NE(
        table_refusal(description).find(std::string("\"") + type + "\", which is not supported"),
        std::string::npos)
        << table_refusal(description);
  }
  TokenizerDescription description = byte_level();
  description.pipeline["model"]["dropout"] = 0.1;
  EXPECT_NE(table_refusal(description).find("dropout\" makes tokens random"), std::string::npos);
}

TEST(CompiledTokenizer, RefusesADescriptionThatContradictsItself) {
  TokenizerDescription description = byte_level();
  description.merges.push_back({'x', 'y'});
  EXPECT_NE(table_refusal(description).find("\"x\" and \"y\" makes a token that does not exist"),
            std::string::npos);
  description = byte_level();
  description.merges.push_back({'x', 5000});
  EXPECT_NE(table_refusal(description).find("a token that does not exist"), std::string::npos);
  description = byte_level();
  description.added_tokens[0].id = 3;
  EXPECT_NE(table_refusal(description).find("which is not its own"), std::string::npos);
  description = byte_level();
  description.vocabulary[3] = "\xFF";
  EXPECT_NE(table_refusal(description).find("the token 3 is not UTF-8"), std::string::npos);
  EXPECT_NE(table_refusal({}).find("has no tokens"), std::string::npos);
}

// Whatever takes the time: steps back, places to begin at, or what passes of a group look at.
TEST(CompiledTokenizer, EndsAPatternThatTakesTooLongInOneSentence) {
  for (const char* pattern : {"(x+x+)+[yz]", "(x{1000}){1000}", "(?:(?!.*y)x)+"}) {
    TokenizerDescription description = byte_level();
    description.pipeline["pre_tokenizer"] = {{"type", "Split"},
                                             {"pattern", {{"Regex", pattern}}},
                                             {"behavior", "Isolated"},
                                             {"invert", false}};
    const Compiled compiled(description);
    const auto start = std::chrono::steady_clock::now();
    try {
      static_cast<void>(compiled->encode(std::string(100'000, 'x')));
      FAIL() << pattern << " came to an end";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("takes too long"), std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << pattern;
  }
}

// Which are no work but for the first of them.
TEST(CompiledTokenizer, FindsFewMatchesInLongTexts) {
  const Pattern pattern("é(?=x)", "test");
  std::string text(300'000, 'x');
  text.replace(250'001, 2, "é");
  TokenizerBudget budget(text.size());
  std::vector<size_t> found;
  pattern.find_all(text, budget, [&](size_t begin, size_t end) {
    found.push_back(begin);
    found.push_back(end);
  });
  EXPECT_EQ(found, (std::vector<size_t>{250'001, 250'003}));
}

std::string refused_text(const Tokenizer& tokenizer, std::string_view text) {
  try {
    return std::to_string(tokenizer.encode(text).size()) + " tokens";
  } catch (const Error& error) {
    return error.what();
  }
}

constexpr const char* kTooLong = "the tokenizer's rules make this text more than 32 times as long";

TEST(CompiledTokenizer, BoundsWhatNormalizersMake) {
  TokenizerDescription description = byte_level();
  json steps = json::array();
  for (int i = 0; i < 12; ++i) {
    steps.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(10, 'a')}});
  }
  description.pipeline["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const Compiled compiled(description);
  EXPECT_TRUE(refused_text(*compiled.tokenizer, "a").starts_with(kTooLong));
  EXPECT_EQ(compiled->encode("hello"), (Ids{259}));
  description.added_tokens[0].normalized = true;  // it has an a, too
  EXPECT_NE(table_refusal(description).find("\"<|a|>\": the tokenizer's rules"), std::string::npos);
}

TEST(CompiledTokenizer, BoundsOneNormalizerThatMakesMuchOfEachMatch) {
  TokenizerDescription description = byte_level();
  description.pipeline["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "x"}}}, {"content", std::string(1 << 20, 'y')}};
  const Compiled compiled(description);
  EXPECT_TRUE(refused_text(*compiled.tokenizer, std::string(1 << 20, 'x')).starts_with(kTooLong));
}

TEST(CompiledTokenizer, BoundsWhatPreTokenizersMake) {
  TokenizerDescription description = byte_level();
  json steps = json::array();  // each writes two bytes for one
  for (int i = 0; i < 60; ++i) {
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  }
  description.pipeline["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  EXPECT_TRUE(refused_text(*Compiled(description).tokenizer, "\xC3\xA9").starts_with(kTooLong));
}

TEST(CompiledTokenizer, BoundsWhatDecodersMake) {
  TokenizerDescription description = byte_level();
  json steps = json::array();
  for (int i = 0; i < 12; ++i) {
    steps.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "h"}}}, {"content", std::string(10, 'h')}});
  }
  description.pipeline["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  const Compiled compiled(description);
  EXPECT_THROW(static_cast<void>(compiled->decode(Ids{'h'})), Error);
  EXPECT_EQ(compiled->decode(Ids{'a'}), "a");
}

TEST(CompiledTokenizer, LooksForInterruptionsInALongText) {
  struct Stop {};
  const std::string tables = compile_tokenizer(byte_level(), "test");
  const auto tokenizer = make_compiled_tokenizer(std::as_bytes(std::span(tables)),
                                                 TokenizerConfig{}, "test", [] { throw Stop(); });
  EXPECT_EQ(tokenizer->encode("hello"), (Ids{259}));
  EXPECT_THROW(static_cast<void>(tokenizer->encode(std::string(1 << 20, ' '))), Stop);
}

TEST(CompiledTokenizer, SplitsAMillionSpaces) {
  const Compiled compiled(byte_level());
  EXPECT_EQ(compiled->encode(std::string(1'000'000, ' ')).size(), 1'000'000U);
}

// A tokenizer is either refused or works; nothing is read outside of the tables.
TEST(CompiledTokenizer, SurvivesDamagedTables) {
  const std::string sound = compile_tokenizer(byte_level(), "test");
  std::mt19937 random(5);
  const auto attempt = [&](const std::string& tables) {
    try {
      const auto tokenizer =
          make_compiled_tokenizer(std::as_bytes(std::span(tables)), TokenizerConfig{}, "test");
      Ids ids = tokenizer->encode("<|a|> hello h\xC3\xA9llo <tool> 123");
      for (int32_t id = -1; id < 300; id += 7) ids.push_back(id);
      static_cast<void>(tokenizer->decode(ids));
      static_cast<void>(tokenizer->find_token("hello"));
    } catch (const Error&) {  // the only way to say no
    }
  };
  for (size_t size = 0; size < sound.size(); size += 97) attempt(sound.substr(0, size));
  for (int i = 0; i < 300; ++i) {
    std::string damaged = sound;
    for (int j = 0; j < 1 + i % 20; ++j) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    attempt(damaged);
    damaged = sound;  // the head alone, and the section table
    damaged[random() % 248] = static_cast<char>(random());
    attempt(damaged);
  }
}

TEST(CompiledTokenizer, RefusesIdsThatItDoesNotHave) {
  const std::string tables = compile_tokenizer(byte_level(), "test");
  const auto refused = [&](const TokenizerConfig& config) {
    try {
      make_compiled_tokenizer(std::as_bytes(std::span(tables)), config, "m.bin");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  TokenizerConfig config;
  config.prefix = {263};
  EXPECT_EQ(refused(config),
            "m.bin: the first token 263 is not one of the tokenizer's 263 tokens; use the model's "
            "original tokenizer");
}

std::string translated(std::string_view oniguruma) {
  try {
    return pcre2_from_oniguruma(oniguruma, "test");
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Pattern, TranslatesWhatOnigurumaMeansOtherwise) {
  EXPECT_EQ(translated(R"(\p{L}+| ?\p{N}{1,3})"), R"(\p{L}+| ?\p{N}{1,3})");
  EXPECT_EQ(translated(R"(\h\u00e9)"), R"([0-9A-Fa-f]\x{00e9})");
  EXPECT_EQ(translated(R"((?m:.)x{,2})"), R"((?s:.)x{0,2})");
  EXPECT_EQ(translated(R"(\p{N}{1,3}+)"), R"((?:\p{N}{1,3})+)");
  EXPECT_EQ(translated(R"((ab){2}+)"), R"((?:((?C1)ab){2})+)");
  EXPECT_EQ(translated(R"((?:a(b)*|c)+(?i:d)?)"), R"((?:(?C1)a((?C1)b)*|c)+(?i:d)?)");
  EXPECT_EQ(translated("[a-c&&[^b]]"), "(?:(?=[a-c])(?:[^b]))");
  EXPECT_EQ(translated("[x[yz]]"), "(?:(?:[x]|[yz]))");
}

TEST(Pattern, RefusesWhatItDoesNotKnowByName) {
  for (const char* pattern : {R"(\K)", R"(\G)", "(?x:a)", "(*FAIL)", R"(\p)", "[a", "(?~ab)", "[]",
                              R"(\x9)", R"(\xFF)", R"([\k])", "a(?i)b"}) {
    EXPECT_NE(translated(pattern).find("test: the pattern"), std::string::npos) << pattern;
  }
  EXPECT_THROW(Pattern("(a", "test"), Error);
  EXPECT_THROW(Pattern("(?<=a+)b", "test"), Error);
  EXPECT_THROW(Pattern(R"(\p{Klingon})", "test"), Error);
}

}  // namespace
}  // namespace faststream
