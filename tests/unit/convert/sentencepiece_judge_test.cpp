#include "convert/tokenizers/sentencepiece_judge.h"

#include <gtest/gtest.h>

#include "support/error.h"
#include "unit/text/tokenizer_models.h"

namespace faststream::convert {
namespace {

std::string verdict(const SentencePieceModel& original, const SentencePieceModel& ours) {
  const std::string bytes = serialize_sentencepiece_model(ours);
  const auto tokenizer = make_sentencepiece_tokenizer(as_bytes(bytes), {}, "m.model");
  try {
    compare_with_sentencepiece(original, *tokenizer, "m.model");
  } catch (const Error& error) {
    return error.what();
  }
  return "the same";
}

TEST(SentencePieceJudge, FindsWhatSplitsAndJoinsAsTheLibraryDoes) {
  for (const bool byte_fallback : {false, true}) {
    const SentencePieceModel model = small_model(byte_fallback);
    EXPECT_EQ(verdict(model, model), "the same");
  }
}

TEST(SentencePieceJudge, TakesPiecesOfAnyLength) {
  SentencePieceModel model = small_model(false);
  model.algorithm = SentencePieceModel::Algorithm::unigram;
  model.pieces.push_back({std::string(60'000, 'a'), -1, SentencePieceModel::PieceType::normal});
  EXPECT_EQ(verdict(model, model), "the same");
}

TEST(SentencePieceJudge, RefusesWhatSplitsOtherwise) {
  const SentencePieceModel model = small_model(true);
  SentencePieceModel other = model;
  other.add_dummy_prefix = !other.add_dummy_prefix;
  EXPECT_TRUE(verdict(model, other).starts_with("m.model: SentencePiece splits the text \""));
}

TEST(SentencePieceJudge, RefusesWhatMakesAnotherText) {
  const SentencePieceModel model = small_model(false);
  SentencePieceModel other = model;
  other.unknown_surface = "?";
  EXPECT_TRUE(verdict(model, other).starts_with("m.model: SentencePiece makes another text"));
}

TEST(SentencePieceJudge, SaysThatTheLibraryRefusesAModel) {
  const SentencePieceModel model = small_model(false);
  SentencePieceModel damaged = model;
  damaged.pieces[0].type = SentencePieceModel::PieceType::control;  // no unknown piece
  EXPECT_TRUE(verdict(damaged, model).starts_with("m.model: SentencePiece cannot load"));
}

}  // namespace
}  // namespace faststream::convert
