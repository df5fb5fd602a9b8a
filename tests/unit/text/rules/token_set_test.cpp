#include "text/rules/token_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace faststream::rules {
namespace {

TEST(TokenSet, AddsTheSameAsAListAndAsBits) {
  constexpr size_t kVocab = 40000;
  const size_t words = mask_words(kVocab);
  TokenSet set(words);
  std::vector<uint32_t> expected(words);
  for (int32_t n = 0; n < 2000; ++n) {
    const auto token = static_cast<int32_t>(static_cast<size_t>(n) * 7919 % kVocab);
    set.add(token);
    set_bit(expected, token);
    if (n % 50 != 0) continue;
    std::vector<uint32_t> mask(words);
    set.add_to(mask);
    ASSERT_EQ(mask, expected) << n;
  }
  EXPECT_EQ(set.bytes(), words * sizeof(uint32_t));
}

TEST(TokenSet, AddsMasksBesideTokensAndToOtherMasks) {
  TokenSet set(3);
  set.add(64);
  set.add(std::vector<uint32_t>{5, 0, 2});
  set.add(32);
  std::vector<uint32_t> mask = {0x80000000U, 0, 0};
  set.add_to(mask);
  EXPECT_EQ(mask, (std::vector<uint32_t>{0x80000005U, 1, 3}));
}

TEST(TokenSet, IsEmptyAtFirst) {
  const TokenSet set(2);
  std::vector<uint32_t> mask(2);
  set.add_to(mask);
  EXPECT_EQ(mask, (std::vector<uint32_t>{0, 0}));
  EXPECT_EQ(set.bytes(), 0U);
}

}  // namespace
}  // namespace faststream::rules
