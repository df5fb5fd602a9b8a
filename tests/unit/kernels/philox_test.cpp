#include "kernels/cpu/sampling/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace faststream {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that the authors publish with Random123 (kat_vectors, "philox4x32 10").
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The digits of pi.
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, LaysOutTheCounterAsPositionThenSequence) {
  const uint64_t seed = 0x299f31d0a4093822;
  const uint64_t position = 0x85a308d3243f6a88;
  const uint64_t sequence = 0x0370734413198a2e;
  EXPECT_EQ(sampling_uniform(seed, sequence, position),
            static_cast<float>(0xd16cfe09U >> 8) / 16777216.0F);
}

}  // namespace
}  // namespace faststream
