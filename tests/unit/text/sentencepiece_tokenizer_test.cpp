#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "support/error.h"
#include "support/utf8.h"
#include "text/tokenizer.h"
#include "unit/effort.h"
#include "unit/text/text_samples.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

using Algorithm = SentencePieceModel::Algorithm;
using Type = SentencePieceModel::PieceType;

std::unique_ptr<Tokenizer> make(const SentencePieceModel& model, const TokenizerConfig& config) {
  return make_sentencepiece_tokenizer(as_bytes(serialize_sentencepiece_model(model)), config,
                                      "test.model");
}

TokenizerConfig bos_and_eos() {
  TokenizerConfig config;
  config.bos = 1;
  config.prefix = {1};
  config.eos = {2};
  return config;
}

std::string model_refusal(std::string_view model, const TokenizerConfig& config = {}) {
  try {
    make_sentencepiece_tokenizer(as_bytes(model), config, "test.model");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string model_refusal(const SentencePieceModel& model) {
  return model_refusal(serialize_sentencepiece_model(model));
}

int32_t id_of(const SentencePieceModel& model, std::string_view text) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].text == text) return static_cast<int32_t>(i);
  }
  ADD_FAILURE() << "no piece " << text;
  return -1;
}

TEST(SentencePieceTokenizer, PutsBosAndEosWhereTheConfigurationSays) {
  const SentencePieceModel model = small_model(true);
  TokenizerConfig config = bos_and_eos();
  const int32_t a = id_of(model,
                          "\xE2\x96\x81"
                          "a");
  EXPECT_EQ(make(model, config)->encode("a"), (std::vector<int32_t>{1, a}));
  EXPECT_EQ(make(model, config)->encode("a", false), (std::vector<int32_t>{a}));
  EXPECT_EQ(make(model, config)->encode(""), (std::vector<int32_t>{1}));
  config.suffix = {2};
  EXPECT_EQ(make(model, config)->encode("a"), (std::vector<int32_t>{1, a, 2}));
  config.prefix.clear();
  EXPECT_EQ(make(model, config)->encode("a"), (std::vector<int32_t>{a, 2}));
  EXPECT_EQ(make(model, {})->encode("a"), (std::vector<int32_t>{a})) << "no BOS to put";
}

TEST(SentencePieceTokenizer, TakesControlPiecesInTextAsText) {
  for (const int32_t id : make(small_model(true), bos_and_eos())->encode("<s></s>", false)) {
    EXPECT_GT(id, 2);
  }
}

TEST(SentencePieceTokenizer, ContinuesATextWithoutADummyPrefix) {
  for (const bool removes_spaces : {false, true}) {
    SentencePieceModel model = small_model(true);
    model.remove_extra_whitespaces = removes_spaces;
    const auto tokenizer = make(model, bos_and_eos());
    const auto ids = [&](std::initializer_list<const char*> pieces) {
      std::vector<int32_t> found;
      for (const char* piece : pieces) found.push_back(id_of(model, piece));
      return found;
    };
    EXPECT_EQ(tokenizer->encode("hell", false), ids({"\xE2\x96\x81", "hell"}));
    EXPECT_EQ(tokenizer->encode_continuation("hell"), ids({"hell"}));
    EXPECT_EQ(tokenizer->encode_continuation(" the"), ids({"\xE2\x96\x81the"}));
    EXPECT_EQ(tokenizer->encode_continuation("  "), ids({"\xE2\x96\x81\xE2\x96\x81"}));
    EXPECT_EQ(tokenizer->encode_continuation("\n"), ids({"<0x0A>"}));
    EXPECT_EQ(tokenizer->encode_continuation(""), ids({}));
    EXPECT_EQ(tokenizer->encode("hell", false), ids({"\xE2\x96\x81", "hell"})) << "as before";
  }
}

TEST(SentencePieceTokenizer, ContinuesATextAsItsTokensContinueTheText) {
  const auto tokenizer = make(small_model(true), bos_and_eos());
  for (const std::string& text : text_samples()) {
    std::vector<int32_t> ids = tokenizer->encode("the");
    const std::vector<int32_t> more = tokenizer->encode_continuation(text);
    ids.insert(ids.end(), more.begin(), more.end());
    if (!is_valid_utf8(text) || text.find("\xE2\x96\x81") != std::string::npos) continue;
    ASSERT_EQ(tokenizer->decode(ids), "the" + text);
  }
}

TEST(SentencePieceTokenizer, ContinuesTextsOnSeveralThreads) {
  const auto tokenizer = make(small_model(true), bos_and_eos());
  std::vector<std::vector<int32_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) {
    threads.emplace_back([&] { ids = tokenizer->encode_continuation("hello the"); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, found[0]);
  EXPECT_FALSE(found[0].empty());
}

TEST(SentencePieceTokenizer, FindsTokensByTheirExactSpelling) {
  SentencePieceModel model = small_model(true);
  model.pieces.push_back({"<|user|>", 0, Type::user_defined});
  const auto tokenizer = make(model, bos_and_eos());
  EXPECT_EQ(tokenizer->find_token("<unk>"), 0);
  EXPECT_EQ(tokenizer->find_token("<s>"), 1);
  EXPECT_EQ(tokenizer->find_token("<0x0A>"), 3 + 0x0A);
  EXPECT_EQ(tokenizer->find_token("hell"), id_of(model, "hell"));
  EXPECT_EQ(tokenizer->find_token("<|user|>"), tokenizer->vocab_size() - 1);
  for (const std::string& piece : {std::string(), std::string("<|user|"), std::string(" the"),
                                   std::string("<s>\0", 4), std::string("\xFF")}) {
    EXPECT_EQ(tokenizer->find_token(piece), std::nullopt) << piece;
  }
}

TEST(SentencePieceTokenizer, GivesTheBytesOfEachKindOfPiece) {
  const SentencePieceModel model = small_model(true);
  const auto tokenizer = make(model, bos_and_eos());
  EXPECT_EQ(tokenizer->vocab_size(), static_cast<int32_t>(model.pieces.size()));
  EXPECT_EQ(tokenizer->token_bytes(0), " \xE2\x81\x87 ");
  EXPECT_EQ(tokenizer->token_bytes(1), "");
  EXPECT_EQ(tokenizer->token_bytes(3), std::string(1, '\0'));
  EXPECT_EQ(tokenizer->token_bytes(3 + 0x0A), "\n");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xFF), "\xFF");
  EXPECT_EQ(tokenizer->token_bytes(id_of(model, "\xE2\x96\x81the")), " the");
  EXPECT_EQ(tokenizer->token_bytes(id_of(model, "o\xE2\x96\x81")), "o ");
  EXPECT_EQ(tokenizer->token_bytes(id_of(model, "\xE2\x96\x81\xE2\x96\x81")), "  ");
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size()), "");
  EXPECT_TRUE(tokenizer->is_eos(2));
  EXPECT_FALSE(tokenizer->is_eos(1));
}

TEST(SentencePieceTokenizer, DecodesWhatItEncoded) {
  const auto tokenizer = make(small_model(true), bos_and_eos());
  for (const std::string& text : text_samples()) {
    if (!is_valid_utf8(text) || text.find("\xE2\x96\x81") != std::string::npos) continue;
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(SentencePieceTokenizer, PassesOverIdsOutsideTheVocabulary) {
  const SentencePieceModel model = small_model(true);
  const auto tokenizer = make(model, bos_and_eos());
  const int32_t the = id_of(model, "\xE2\x96\x81the");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-5, the, 2'000'000'000, the}), "the the");
}

TEST(SentencePieceTokenizer, HasAnUnknownTokenWithoutByteFallback) {
  const auto tokenizer = make(small_model(false), bos_and_eos());
  const std::vector<int32_t> ids = tokenizer->encode("a\xE4\xBD\xA0", false);
  EXPECT_EQ(ids.back(), 0);
  EXPECT_EQ(tokenizer->decode(ids), "a \xE2\x81\x87 ");
}

TEST(SentencePieceTokenizer, EncodesAHundredKilobytesInWellUnderASecond) {
  const auto tokenizer = make(small_model(true), bos_and_eos());
  const std::vector<std::string> samples = text_samples();
  for (const std::string& text : {std::string(100'000, 'l'), std::string(100'000, ' '),
                                  samples.back(), samples[samples.size() - 2]}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_GT(tokenizer->encode(text).size(), 1000U);
    // A quadratic algorithm takes minutes; the bound leaves room for sanitizers and busy machines.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
}

TEST(SentencePieceTokenizer, RefusesSpecialTokensOutsideTheVocabulary) {
  const std::string model = serialize_sentencepiece_model(small_model(false));
  TokenizerConfig config;
  config.bos = 20;
  EXPECT_EQ(model_refusal(model, config),
            "test.model: the BOS token 20 is not one of the tokenizer's 20 tokens; use the model's "
            "original tokenizer");
  config.bos = 1;
  config.eos = {2, 20};
  EXPECT_NE(model_refusal(model, config).find("the EOS token 20"), std::string::npos);
}

TEST(SentencePieceTokenizer, RefusesWhatIsNoModel) {
  EXPECT_NE(model_refusal("").find("test.model: is not a SentencePiece model"), std::string::npos);
  EXPECT_NE(model_refusal("{\"model\": \"bpe\"}"), "accepted");
  EXPECT_NE(model_refusal(std::string(1000, '\0')), "accepted");
  EXPECT_NE(model_refusal(std::string(1000, '\xFF')), "accepted");
}

TEST(SentencePieceTokenizer, RefusesPiecesThatMakeNoSense) {
  const auto with = [](auto change) {
    SentencePieceModel model = small_model(true);
    change(model);
    return model_refusal(model);
  };
  EXPECT_NE(with([](auto& m) { m.pieces[270].text = ""; }).find("piece 270"), std::string::npos);
  EXPECT_NE(with([](auto& m) { m.pieces[270].text = "\xC3"; }).find("piece 270"),
            std::string::npos);
  EXPECT_NE(with([](auto& m) { m.pieces[270].text = std::string("a\0b", 3); }), "accepted");
  EXPECT_NE(with([](auto& m) { m.pieces[270].score = std::stof("nan"); }), "accepted");
  EXPECT_NE(with([](auto& m) { m.pieces[270].type = static_cast<Type>(9); }), "accepted");
  EXPECT_NE(with([](auto& m) { m.pieces[270] = m.pieces[271]; }), "accepted") << "a piece twice";
  EXPECT_NE(with([](auto& m) { m.pieces[9].type = Type::normal; }), "accepted") << "a byte missing";
  EXPECT_NE(with([](auto& m) { m.pieces[9].text = "<0xZZ>"; }), "accepted");
  EXPECT_NE(with([](auto& m) { m.pieces[0].type = Type::control; }), "accepted") << "no unknown";
  EXPECT_NE(with([](auto& m) { m.byte_fallback = false; }), "accepted");
  EXPECT_NE(with([](auto& m) { m.algorithm = static_cast<SentencePieceModel::Algorithm>(3); }),
            "accepted");
}

TEST(SentencePieceTokenizer, RefusesAModelWithoutPiecesOfTexts) {
  SentencePieceModel model;
  model.pieces = {{"<unk>", 0, Type::unknown}, {"<s>", 0, Type::control}};
  EXPECT_NE(model_refusal(model).find("no piece of a text"), std::string::npos);
  model.pieces.push_back({"<unknown>", 0, Type::unknown});
  EXPECT_NE(model_refusal(model).find("2 unknown pieces"), std::string::npos);
}

TEST(SentencePieceTokenizer, RefusesUserDefinedSymbolsNestedTooDeeply) {
  SentencePieceModel model = small_model(true);
  for (size_t length = 1; length <= 64; ++length) {
    model.pieces.push_back({std::string(length, 'z'), 0, Type::user_defined});
  }
  EXPECT_EQ(model_refusal(model), "accepted");
  EXPECT_EQ(make(model, {})->encode(std::string(65, 'z'), false).size(), 3U);
  model.pieces.push_back({std::string(65, 'z'), 0, Type::user_defined});
  EXPECT_NE(model_refusal(model).find("nests user-defined symbols too deeply"), std::string::npos);
}

/// A charsmap that turns "A" into string number `value` of `first` and "".
std::string small_charsmap(uint32_t value, std::string_view first = "a") {
  constexpr uint32_t kRoot = 0;
  constexpr uint32_t kChildren = 256;  // a byte's unit is at kChildren ^ byte
  constexpr uint32_t kLeaf = 511;
  constexpr uint32_t kHasLeaf = 1U << 8;
  constexpr uint32_t kIsLeaf = 1U << 31;
  std::vector<uint32_t> units(512, kIsLeaf);  // a leaf's unit matches no byte
  units[kRoot] = (kRoot ^ kChildren) << 10;
  units[kChildren ^ 'A'] = (kChildren ^ 'A' ^ kLeaf) << 10 | kHasLeaf | 'A';
  units[kLeaf] = kIsLeaf | value;
  const auto size = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string map(reinterpret_cast<const char*>(&size), sizeof size);
  map.append(reinterpret_cast<const char*>(units.data()), size);
  map.append(first).push_back('\0');
  return map;
}

TEST(SentencePieceTokenizer, AppliesNormalizationRules) {
  SentencePieceModel model = small_model(true);
  model.charsmap = small_charsmap(0);
  EXPECT_EQ(make(model, {})->encode("A", false), make(model, {})->encode("a", false));
}

TEST(SentencePieceTokenizer, BoundsWhatNormalizationRulesMake) {
  SentencePieceModel model = small_model(true);
  model.charsmap = small_charsmap(0, std::string(1 << 16, 'a'));
  try {
    static_cast<void>(make(model, {})->encode(std::string(1 << 12, 'A')));
    FAIL() << "256 MB were made";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("the tokenizer's rules make this text"))
        << error.what();
  }
}

TEST(SentencePieceTokenizer, LooksForInterruptionsInALongText) {
  for (const Algorithm algorithm : {Algorithm::bpe, Algorithm::unigram}) {
    SentencePieceModel model = small_model(true);
    model.algorithm = algorithm;
    size_t n_looks = 0;
    const auto tokenizer = make_compiled_tokenizer(compile_sentencepiece(model), {}, "test.model",
                                                   [&n_looks] { ++n_looks; });
    EXPECT_EQ(tokenizer->encode("the").size(), 1U);
    EXPECT_EQ(n_looks, 0U);
    std::string text;
    for (int i = 0; i < 1 << 18; ++i) text += "hello ";
    static_cast<void>(tokenizer->encode(text));
    EXPECT_GT(n_looks, text.size() >> 18U) << "once for some milliseconds";
    n_looks = 0;
    static_cast<void>(tokenizer->encode(std::string(1 << 18, 'l')));
    EXPECT_GT(n_looks, 4U) << "in a word";
  }
}

TEST(SentencePieceTokenizer, RefusesNormalizationRulesThatLeaveTheirTable) {
  const auto with = [](std::string charsmap) {
    SentencePieceModel model = small_model(true);
    model.charsmap = std::move(charsmap);
    return model_refusal(model);
  };
  const std::string valid = small_charsmap(0);
  EXPECT_NE(with(small_charsmap(2)), "accepted") << "a value past the strings";
  EXPECT_NE(with(valid.substr(0, 100)), "accepted") << "cut short";
  EXPECT_NE(with(valid + "b"), "accepted") << "a string without an end";
  EXPECT_NE(with("ab"), "accepted");
  for (char size = 0; size < 4; ++size) {  // a trie with less than a root
    EXPECT_NE(with(std::string{size, 0, 0, 0} + std::string(8, '\0')), "accepted") << int{size};
  }
  for (const size_t unit : {0, 256 ^ 'A'}) {  // the root and "A" point far out
    std::string charsmap = valid;
    for (size_t i = 1; i < 4; ++i) charsmap[4 + 4 * unit + i] = '\x7F';
    EXPECT_NE(with(charsmap), "accepted") << unit;
  }
}

TEST(SentencePieceTokenizer, SurvivesDamage) {
  SentencePieceModel model = small_model(true);
  model.charsmap = small_charsmap(0);
  model.pieces.push_back({"<|user|>", 0, Type::user_defined});
  const std::string valid = serialize_sentencepiece_model(model);
  ASSERT_EQ(model_refusal(valid), "accepted");
  const std::string text = "hello AAA the <|user|> \xE4\xBD\xA0 \xFF";
  const auto use = [&](const std::string& bytes) {
    try {
      const auto tokenizer = make_sentencepiece_tokenizer(as_bytes(bytes), {}, "test.model");
      static_cast<void>(tokenizer->decode(tokenizer->encode(text)));
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with("test.model: ")) << error.what();
    }
  };
  for (size_t length = 0; length < valid.size(); length += 1 + length / 64) {
    use(valid.substr(0, length));
  }
  std::mt19937 random(7);
  for (size_t round = 0; round < repetitions(4000); ++round) {
    std::string damaged = valid;
    for (size_t flips = 1 + random() % 4; flips > 0; --flips) {
      damaged[random() % damaged.size()] ^= static_cast<char>(1U << random() % 8);
    }
    use(damaged);
  }
}

}  // namespace
}  // namespace faststream
