// SentencePiece models, described and compiled, against the library itself, which trains them here.
#include "text/describe_sentencepiece.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "support/error.h"
#include "unit/effort.h"
#include "unit/text/text_samples.h"
#include "unit/text/tokenizer_models.h"

namespace faststream {
namespace {

using Algorithm = SentencePieceModel::Algorithm;
using Type = SentencePieceModel::PieceType;

/// Words of few letters in a row, so that many splits are nearly as good.
std::string babble(std::mt19937& random, size_t size) {
  static const std::vector<std::string> syllables = {"a",
                                                     "b",
                                                     "ab",
                                                     "ba",
                                                     "aa",
                                                     "abc",
                                                     "c",
                                                     " ",
                                                     " ",
                                                     "  ",
                                                     "e\xCC\x81",
                                                     "\xC3\xA9",
                                                     "fi",
                                                     "\xEF\xAC\x81",
                                                     "\xE3\x8F\x8D",
                                                     "\xE4\xBD\xA0",
                                                     "\xE5\xA5\xBD",
                                                     "<user>",
                                                     "<us",
                                                     "er>"};
  std::string text;
  while (text.size() < size) text += syllables[random() % syllables.size()];
  return text;
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  [[nodiscard]] bool done() const override { return left_ == 0; }
  void Next() override {
    --left_;
    text_ = babble(random_, 60);
  }
  [[nodiscard]] const std::string& value() const override { return text_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  int left_ = 300;
  std::mt19937 random_{3};
  std::string text_ = "aababc";
};

/// With byte fallback, a user-defined symbol and the library's own rules of normalization.
const SentencePieceModel& trained(Algorithm algorithm) {
  static std::map<Algorithm, SentencePieceModel> models;
  const auto known = models.find(algorithm);
  if (known != models.end()) return known->second;
  Sentences sentences;
  std::string proto;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", algorithm == Algorithm::bpe ? "bpe" : "unigram"},
       {"vocab_size", "360"},
       {"hard_vocab_limit", "false"},
       {"byte_fallback", "true"},
       {"user_defined_symbols", "<user>,<us"},
       {"normalization_rule_name", "nmt_nfkc"},
       {"split_by_whitespace", "false"},
       {"num_threads", "1"},
       {"minloglevel", "2"}},
      &sentences, &proto);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return models[algorithm] = parse_sentencepiece_model(as_bytes(proto), "trained");
}

void drop_byte_fallback(SentencePieceModel& model) {
  std::erase_if(model.pieces, [](const auto& piece) { return piece.type == Type::byte; });
  model.byte_fallback = false;
}

std::vector<std::string> texts(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<std::string> made = {"", " ", "   ", "a", "\xE2\x96\x81", "a \xE2\x96\x81 "};
  while (made.size() < count) {
    made.push_back(random() % 3 == 0 ? random_text(random, 1 + random() % 8)
                                     : babble(random, 1 + random() % 200));
  }
  return made;
}

class TokenizerAgainstLibrary {
 public:
  explicit TokenizerAgainstLibrary(const SentencePieceModel& model) {
    const std::string proto = serialize_sentencepiece_model(model);
    const auto status = library_.LoadFromSerializedProto(proto);
    EXPECT_TRUE(status.ok()) << status.ToString();
    TokenizerConfig config;
    config.keep_leading_space = true;  // which decode() does not look at
    tokenizer_ = make_sentencepiece_tokenizer(as_bytes(proto), config, "t");
  }

  void expect_the_same(const std::string& text) const {
    std::vector<int> expected;
    ASSERT_TRUE(library_.Encode(text, &expected).ok());
    const std::vector<int32_t> ids = tokenizer_->encode(text, false);
    ASSERT_EQ(ids, std::vector<int32_t>(expected.begin(), expected.end())) << text;
    ASSERT_NO_FATAL_FAILURE(expect_the_same_text(expected));
    const auto least = static_cast<size_t>(tokenizer_->min_tokens(text, kCountAll));
    ASSERT_LE(least, ids.size()) << text;
    ASSERT_LE(least, tokenizer_->encode_continuation(text).size()) << text;
  }

  void expect_the_same_text(const std::vector<int>& ids) const {
    std::string expected;
    ASSERT_TRUE(library_.Decode(ids, &expected).ok());
    ASSERT_EQ(tokenizer_->decode(std::vector<int32_t>(ids.begin(), ids.end())), expected);
  }
  [[nodiscard]] int vocab_size() const { return library_.GetPieceSize(); }

 private:
  sentencepiece::SentencePieceProcessor library_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

class SentencePieceTokenizerOf : public testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(, SentencePieceTokenizerOf,
                         testing::Values(Algorithm::bpe, Algorithm::unigram),
                         [](const auto& algorithm) {
                           return algorithm.param == Algorithm::bpe ? "Bpe" : "Unigram";
                         });

TEST_P(SentencePieceTokenizerOf, SplitsAsTheLibraryWhateverTheModelDoesWithSpaces) {
  for (uint32_t flags = 0; flags < 64; ++flags) {
    SentencePieceModel model = trained(GetParam());
    model.add_dummy_prefix = (flags & 1U) != 0;
    model.remove_extra_whitespaces = (flags & 2U) != 0;
    model.escape_whitespaces = (flags & 4U) != 0;
    model.whitespace_as_suffix = (flags & 8U) != 0;
    if ((flags & 16U) != 0) drop_byte_fallback(model);
    if ((flags & 32U) != 0) model.charsmap.clear();
    const TokenizerAgainstLibrary tokenizer(model);
    for (const std::string& text : texts(flags, repetitions(30))) {
      ASSERT_NO_FATAL_FAILURE(tokenizer.expect_the_same(text)) << "flags " << flags;
    }
  }
}

TEST_P(SentencePieceTokenizerOf, DecodesAnyTokensAsTheLibrary) {
  for (uint32_t flags = 0; flags < 16; ++flags) {
    SentencePieceModel model = trained(GetParam());
    model.add_dummy_prefix = (flags & 1U) != 0;
    model.remove_extra_whitespaces = (flags & 2U) != 0;
    model.whitespace_as_suffix = (flags & 4U) != 0;
    if ((flags & 8U) != 0) model.unknown_surface = "\xE2\x96\x81?";
    model.pieces.push_back({"\xE2\x96\x81\xE2\x96\x81", -1, Type::user_defined});
    model.pieces.push_back({"<end>", 0, Type::control});
    const TokenizerAgainstLibrary tokenizer(model);
    std::mt19937 random(flags);
    for (size_t i = 0; i < repetitions(300); ++i) {
      std::vector<int> ids;
      for (size_t n = random() % 12; n > 0; --n) {
        // Bytes, spaces and what is special more often than others.
        const auto size = static_cast<uint32_t>(tokenizer.vocab_size());
        ids.push_back(static_cast<int>(random() % 4 == 0   ? size - 1 - random() % 2
                                       : random() % 2 == 0 ? random() % 270
                                                           : random() % size));
      }
      ASSERT_NO_FATAL_FAILURE(tokenizer.expect_the_same_text(ids)) << "flags " << flags;
    }
  }
}

/// Eight times the trained model with change(model, seed, random), each against the library.
template <typename Change>
void expect_the_same_after(Algorithm algorithm, Change change) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    SentencePieceModel model = trained(algorithm);
    std::mt19937 random(seed);
    change(model, seed, random);
    const TokenizerAgainstLibrary tokenizer(model);
    for (const std::string& text : texts(seed, repetitions(60))) {
      ASSERT_NO_FATAL_FAILURE(tokenizer.expect_the_same(text)) << "seed " << seed;
    }
  }
}

TEST_P(SentencePieceTokenizerOf, SplitsAsTheLibraryWhereSomePiecesAreUnused) {
  expect_the_same_after(GetParam(), [](SentencePieceModel& model, uint32_t, std::mt19937& random) {
    for (auto& piece : model.pieces) {
      if (piece.type == Type::normal && random() % 3 == 0) piece.type = Type::unused;
    }
  });
}

TEST_P(SentencePieceTokenizerOf, SplitsAsTheLibraryWherePiecesAreMissing) {
  expect_the_same_after(
      GetParam(), [](SentencePieceModel& model, uint32_t seed, std::mt19937& random) {
        if (seed % 2 == 0) drop_byte_fallback(model);
        std::erase_if(model.pieces, [&](const auto& piece) {
          return piece.type == Type::normal && random() % 4 == 0;  // of single characters, too
        });
        for (auto& piece : model.pieces) {
          if (piece.type == Type::normal && random() % 16 == 0) piece.type = Type::user_defined;
        }
      });
}

TEST_P(SentencePieceTokenizerOf, SplitsAsTheLibraryWithScoresInAnyOrder) {
  expect_the_same_after(GetParam(), [](SentencePieceModel& model, uint32_t, std::mt19937& random) {
    for (auto& piece : model.pieces) piece.score = static_cast<float>(random() % 9) / -4;
  });
}

TEST_P(SentencePieceTokenizerOf, SplitsLongTextsAndLongWordsAsTheLibrary) {
  const TokenizerAgainstLibrary tokenizer(trained(GetParam()));
  std::mt19937 random(9);
  std::string ab;
  for (int i = 0; i < 30'000; ++i) ab += static_cast<char>('a' + random() % 2);
  for (const std::string& text : {std::string(30'000, 'a'), std::string(30'000, ' '), ab,
                                  babble(random, 100'000), text_samples().back()}) {
    ASSERT_NO_FATAL_FAILURE(tokenizer.expect_the_same(text));
  }
}

/// Memory that `work` adds to what is there, at its highest, in bytes; of a process of its own.
size_t peak_memory(const std::function<void()>& work) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return SIZE_MAX;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto peak = [] {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      return static_cast<size_t>(usage.ru_maxrss) * 1024;
    };
    const size_t before = peak();
    work();
    const size_t added = peak() - before;
    const bool written = ::write(ends[1], &added, sizeof added) == sizeof added;
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  size_t added = SIZE_MAX;
  if (::read(ends[0], &added, sizeof added) != sizeof added) added = SIZE_MAX;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return added;
}

TEST(SentencePieceModelAgainstLibrary, AcceptsWhatTheLibraryLoads) {
  std::mt19937 random(11);
  size_t n_accepted = 0;
  for (size_t i = 0; i < repetitions(3000); ++i) {
    SentencePieceModel model = small_model(i % 2 == 0);
    model.algorithm = i % 3 == 0 ? Algorithm::unigram : Algorithm::bpe;
    for (size_t n = random() % 3; n > 0; --n) {
      SentencePieceModel::Piece& piece = model.pieces[random() % model.pieces.size()];
      const std::vector<std::string> texts = {"<0x0a>", "<0x41>", "<0x4>", "x", "<unk>", "\xF0"};
      if (random() % 2 == 0) piece.type = static_cast<Type>(random() % 7);
      if (random() % 4 == 0) piece.text = texts[random() % texts.size()];
    }
    if (random() % 8 == 0) model.byte_fallback = !model.byte_fallback;
    if (random() % 8 == 0) model.pieces.resize(random() % 4);
    const std::string proto = serialize_sentencepiece_model(model);
    bool accepted = true;
    try {
      static_cast<void>(parse_sentencepiece_model(as_bytes(proto), "m"));
    } catch (const Error&) {
      accepted = false;
    }
    n_accepted += accepted ? 1 : 0;
    sentencepiece::SentencePieceProcessor library;
    if (!accepted) continue;
    ASSERT_TRUE(library.LoadFromSerializedProto(proto).ok());
  }
  EXPECT_GT(n_accepted, repetitions(3000) / 10);
}

TEST(DescribeSentencePiece, RefusesMorePiecesThatBeginWithOthersThanAModelHas) {
  SentencePieceModel model = small_model(false);
  constexpr size_t kNested = 100;
  for (size_t n = 1; n <= kNested; ++n) model.pieces.push_back({std::string(n, 'z'), 1});
  const auto add = [&](size_t n_pieces) {
    for (; n_pieces > 0; --n_pieces) {
      model.pieces.push_back({std::string(kNested, 'z') + std::to_string(model.pieces.size()), 0});
    }
  };
  add(1000);
  const TokenizerDescription description = describe_sentencepiece(model, "m");
  EXPECT_EQ(std::ranges::count(description.merge_ranks, 0),
            static_cast<int>(kNested * (kNested - 1) / 2))
      << "no piece is made of others' ends";
  add(42'000);
  try {
    static_cast<void>(describe_sentencepiece(model, "m"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), std::string("m: the SentencePiece model has too many pieces that begin "
                                        "with others; use the model's original tokenizer"));
  }
}

/// A merge of a token with itself as it stands in tables.
std::string merge_slot(int32_t part, int32_t rank, int32_t whole) {
  const int32_t slot[] = {part, part, rank, whole};
  return {reinterpret_cast<const char*>(slot), sizeof slot};
}

TEST(DescribeSentencePiece, MakesTablesWhoseUnusedTokensFallApartEvenWhenDamaged) {
  SentencePieceModel model = small_model(false);
  const auto z = static_cast<int32_t>(model.pieces.size());
  model.pieces.push_back({"z", 0, Type::unused});
  model.pieces.push_back({"zz", 0, Type::unused});
  std::string tables = compile_sentencepiece(model);
  const std::vector<int32_t> expected = {z, z, z};
  EXPECT_EQ(make_compiled_tokenizer(tables, {}, "t")->encode_continuation("zzz"), expected);
  const size_t at = tables.find(merge_slot(z, 0, z + 1));
  ASSERT_NE(at, std::string::npos);
  tables.replace(at, sizeof(int32_t) * 4, merge_slot(z, 0, z));  // "z" is made of itself
  EXPECT_EQ(make_compiled_tokenizer(tables, {}, "t")->encode_continuation("zzz"), expected);
}

TEST(SentencePieceTokenizerMemory, IsAModestMultipleOfTheTextEvenWhenThatIsOneWord) {
  const auto tokenizer = make_sentencepiece_tokenizer(
      as_bytes(serialize_sentencepiece_model(small_model(true))), {}, "test.model");
  constexpr size_t kSize = 1 << 20;
  const std::string word(kSize, 'l');
  std::string words;
  while (words.size() < kSize) words += "hello the ";
  // SentencePiece's own encoder takes 230 bytes for a byte. The bounds leave room for sanitizers.
  EXPECT_LT(peak_memory([&] { static_cast<void>(tokenizer->encode(word)); }), 60 * kSize);
  EXPECT_LT(peak_memory([&] { static_cast<void>(tokenizer->encode(words)); }), 30 * kSize);
  EXPECT_LT(peak_memory([&] { static_cast<void>(tokenizer->min_tokens(word, kCountAll)); }),
            8 * kSize);
}

TEST(SentencePieceTokenizerMinTokens, BoundsTheNumberOfTokens) {
  const auto tokenizer =
      make_compiled_tokenizer(compile_sentencepiece(small_model(true)), {}, "test.model");
  // The longest piece, "▁the", has 6 bytes.
  EXPECT_EQ(tokenizer->min_tokens("", kCountAll), 0);
  EXPECT_EQ(tokenizer->min_tokens(std::string(600, 'l'), kCountAll), 100);
  for (const std::string& text : text_samples()) {
    const auto least = static_cast<size_t>(tokenizer->min_tokens(text, kCountAll));
    ASSERT_LE(least, tokenizer->encode(text, false).size()) << text;
    ASSERT_LE(least, tokenizer->encode_continuation(text).size()) << text;
    ASSERT_GE(least, text.size() / 6) << text;
  }
}

}  // namespace
}  // namespace faststream
