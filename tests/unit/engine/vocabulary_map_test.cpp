// Rules of tokens, where rows of logits are those of some tokens in another order.
#include "engine/vocabulary_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "support/bit_mask.h"
#include "unit/backend/test_backends.h"

namespace faststream {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

class VocabularyMapTest : public testing::Test {
 protected:
  // What is drawn of these logits of tokens 70, 5 and 40, in this order.
  SampledToken draw(const SamplingRow& rule) {
    std::vector<float> logits = {1, 3, 2, 0};
    Buffer memory = backend_->allocate(logits.size() * sizeof(float));
    backend_->copy_to_device(memory.get(), logits.data(), logits.size() * sizeof(float));
    const Matrix rows(memory.get(), DType::f32, 1, 4);
    const auto choices = map_.choose({&rule, 1}, [&](std::span<const SamplingRow> of_rows) {
      return backend_->choose(rows.columns(0, 3), of_rows);
    });
    choices->wait();
    SampledToken token;
    choices->read(0, token);
    return token;
  }

  std::unique_ptr<Backend> backend_ = make_test_backend("cpu");
  VocabularyMap map_{{70, 5, 40}, 100};
};

TEST_F(VocabularyMapTest, SpeaksOfTokens) {
  const SampledToken token = draw({.n_logprobs = 2});
  EXPECT_EQ(token.token, 5);
  ASSERT_EQ(token.top.size(), 2U);
  EXPECT_EQ(token.top[0].token, 5);
  EXPECT_EQ(token.top[1].token, 40);
  const SampledToken ranked = draw({.n_candidates = 3});
  ASSERT_EQ(ranked.candidates.size(), 3U);
  EXPECT_EQ(ranked.candidates[2].token, 70);
}

TEST_F(VocabularyMapTest, ObeysRulesOfTokens) {
  const std::vector<LogitEdit> edits = {
      {.token = 5, .bias = kNever}, {.token = 99, .bias = 50}, {.token = 70, .bias = 4}};
  EXPECT_EQ(draw({.edits = edits}).token, 70);
  std::vector<uint32_t> mask(4);
  set_bit(mask, 40);
  EXPECT_EQ(draw({.mask = mask}).token, 40);
  EXPECT_EQ(draw({.edits = edits, .mask = mask}).token, 40);
}

TEST_F(VocabularyMapTest, DrawsWithoutRulesThatLeaveNoRow) {
  std::vector<uint32_t> mask(4);
  mask[3] = 2;  // token 97
  EXPECT_EQ(draw({.mask = mask}).token, 5);
  mask[0] = 1U << 5;
  const std::vector<LogitEdit> edits = {{.token = 5, .bias = kNever}};
  EXPECT_EQ(draw({.edits = edits, .mask = mask}).token, 5);
  const std::vector<LogitEdit> all = {
      {.token = 5, .bias = kNever}, {.token = 70, .bias = kNever}, {.token = 40, .bias = kNever}};
  EXPECT_EQ(draw({.edits = all}).token, 5);
}

}  // namespace
}  // namespace faststream
