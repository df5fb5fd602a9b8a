#include "support/bit_mask.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace faststream {
namespace {

TEST(BitMask, HasTheBitsThatWereSet) {
  std::vector<uint32_t> mask(mask_words(int64_t{65}));
  ASSERT_EQ(mask.size(), 3U);
  for (const int32_t n : {0, 31, 32, 64}) set_bit(mask, n);
  EXPECT_EQ(mask, (std::vector<uint32_t>{0x80000001U, 1, 1}));
  for (size_t n = 0; n < 65; ++n) {
    EXPECT_EQ(has_bit(mask, n), n == 0 || n == 31 || n == 32 || n == 64) << n;
  }
  clear_bit(mask, 31);
  clear_bit(mask, 33);  // was none
  EXPECT_EQ(mask, (std::vector<uint32_t>{1, 1, 1}));
}

TEST(BitMask, WordsHoldNumbersBelow) {
  EXPECT_EQ(mask_words(0), 0U);
  EXPECT_EQ(mask_words(1), 1U);
  EXPECT_EQ(mask_words(32), 1U);
  EXPECT_EQ(mask_words(33), 2U);
}

TEST(BitMask, AddsAndCountsBits) {
  std::vector<uint32_t> mask = {1, 0, 0};
  add_bits(mask, std::vector<uint32_t>{1, 0x80000000U});
  EXPECT_EQ(count_bits(mask), 2U);
  EXPECT_EQ(mask, (std::vector<uint32_t>{1, 0x80000000U, 0}));
}

}  // namespace
}  // namespace faststream
