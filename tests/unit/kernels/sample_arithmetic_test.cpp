#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/sampling.h"

namespace faststream {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SampleArithmetic, KeysOrderByLogitAndThenById) {
  const float logits[] = {-kInf, -3e38F, -1, -1e-40F, 0, 1e-40F, 1, 2.5F, 3e38F, kInf};
  for (size_t i = 1; i < std::size(logits); ++i) {
    EXPECT_LT(token_key(logits[i - 1], 0), token_key(logits[i], kMaxVocab - 1)) << logits[i];
  }
  for (const float logit : logits) {
    EXPECT_GT(token_key(logit, 4), token_key(logit, 5));
    EXPECT_EQ(key_logit(token_key(logit, 77)), logit);
    EXPECT_EQ(key_id(token_key(logit, 77)), 77);
  }
  EXPECT_EQ(token_key(-0.0F, 3), token_key(0.0F, 3));
}

TEST(SampleArithmetic, MassesAreExactToFloat32AndNeverRise) {
  const Softmax softmax{0, 1};
  uint64_t previous = softmax.mass(0);
  EXPECT_EQ(previous, uint64_t{1} << 40);
  for (int i = 0; i < 4'100'000; ++i) {
    const float octaves = 1e-5F * static_cast<float>(i);
    const uint64_t mass = softmax.mass(-octaves);
    const double exact = std::exp2(40 - double{octaves});
    ASSERT_LE(mass, previous) << octaves;
    if (octaves < kMassOctaves) {
      ASSERT_NEAR(static_cast<double>(mass), exact, exact * 0x1p-25 + 1) << octaves;
    }
    ASSERT_EQ(mass > 0, octaves < kMassOctaves) << octaves;
    previous = mass;
  }
}

TEST(SampleArithmetic, ExtremeTemperaturesAndLogitsHaveMasses) {
  for (const float temperature : {1e-45F, 1e-30F, 1.0F, 100.0F}) {
    const Softmax softmax{3e38F, softmax_scale(temperature)};
    EXPECT_EQ(softmax.mass(3e38F), uint64_t{1} << 40);
    EXPECT_EQ(softmax.mass(-3e38F), 0U);
    EXPECT_EQ(softmax.mass(-kInf), 0U);
  }
}

TEST(SampleArithmetic, ThresholdsAreReachableIntegers) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t total = std::max<uint64_t>(1, random() >> (1 + random() % 63));
    const float uniform = static_cast<float>(random() >> 40) * 0x1p-24F;
    const uint64_t drawn = drawn_mass(uniform, total);
    ASSERT_LE(drawn, total);
    // The smallest integer above uniform * total, in long double's 64 bits.
    const auto exact = static_cast<long double>(uniform) * static_cast<long double>(total);
    if (total < uint64_t{1} << 40) {
      ASSERT_EQ(drawn, static_cast<uint64_t>(exact) + 1);
    }
    const uint64_t nucleus = nucleus_mass(uniform, total);
    ASSERT_GE(nucleus, 1U);
    ASSERT_LE(nucleus, total);
    ASSERT_NEAR(static_cast<double>(nucleus), static_cast<double>(exact),
                static_cast<double>(total) * 0x1p-50 + 1);
  }
  EXPECT_EQ(nucleus_mass(0, 100), 1U);
  EXPECT_EQ(nucleus_mass(0.5F, 100), 50U);
  EXPECT_EQ(nucleus_mass(0.5F, 101), 51U);
}

}  // namespace
}  // namespace faststream
