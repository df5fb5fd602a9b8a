// Floats of 4 and 8 bits: what their codes mean.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace faststream {

/// E4M3 without infinities (arXiv:2209.05433): 4 bits of exponent, 3 of mantissa; all of them set
/// is NaN.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3;
    float value = static_cast<float>(exponent == 0 ? code & 7 : 8 + (code & 7)) / 512;
    for (int i = 1; i < exponent; ++i) value *= 2;
    if (code == 127) value = std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(code)] = value;
    values[static_cast<size_t>(code) + 128] = -value;
  }
  return values;
}();
inline constexpr float kLargestE4m3 = 448;

/// The nearest code of E4M3, to even; |x| at most kLargestE4m3.
inline uint8_t to_e4m3(float x) {
  // As Float16 rounds: below the smallest normal number adding 2^14 rounds to the subnormals' grid.
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) -
                             std::bit_cast<uint32_t>(0x1p14F);
  const uint32_t normal = (magnitude + 0x7ffffU + ((magnitude >> 20) & 1U) - (120U << 23)) >> 20;
  const uint32_t sign = (bits >> 24) & 0x80U;
  return static_cast<uint8_t>(sign | (magnitude < 0x3c800000U ? subnormal : normal));
}

/// The sixteen numbers E2M1 (OCP Microscaling Formats 1.0).
inline constexpr std::array<float, 16> kE2m1Values = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                      -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

/// E8M0 (the same): 2^(code - 127); 255 is NaN.
constexpr float e8m0_value(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(code == 0 ? 0x00400000U : uint32_t{code} << 23);
}

/// NF4 (arXiv:2305.14314): quantiles of a normal distribution, the largest of them 1.
inline constexpr std::array<float, 16> kNf4Values = {-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

/// Integers of four bits.
inline constexpr std::array<float, 16> kFourBitIntegers = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace faststream
