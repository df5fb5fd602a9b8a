#include "support/weight_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/small_floats.h"

namespace faststream {
namespace {

TEST(WeightFormat, HasANameForEach) {
  for (const WeightFormat format : kWeightFormats) {
    EXPECT_EQ(format_from_name(format_name(format)), format);
  }
  EXPECT_FALSE(format_from_name("int4_g32"));
}

TEST(WeightFormat, PacksBlocksAndWholeSteps) {
  EXPECT_EQ(row_bytes(WeightFormat::int4, 512), 16 + 256);
  EXPECT_EQ(row_bytes(WeightFormat::mxfp4, 512), 16 + 256);
  EXPECT_EQ(row_bytes(WeightFormat::int4_g128, 1024), 2 * (16 + 256));
  EXPECT_EQ(row_bytes(WeightFormat::int4_g64, 512), 32 + 256);
  EXPECT_EQ(row_bytes(WeightFormat::nf4, 512), 32 + 256);
  EXPECT_EQ(row_bytes(WeightFormat::int4_g32, 512), 64 + 256);
  EXPECT_EQ(row_bytes(WeightFormat::fp8, 512), 16 + 512);
  EXPECT_EQ(row_bytes(WeightFormat::fp8, 513), 16 + 512 + 16 + 32);
  EXPECT_EQ(row_bytes(WeightFormat::nf4, 33), 32 + 32);
}

TEST(SmallFloats, RoundTripThroughTheirCodes) {
  for (int code = 0; code < 256; ++code) {
    const float value = kE4m3Values[static_cast<size_t>(code)];
    if (std::isnan(value)) continue;
    EXPECT_EQ(to_e4m3(value), code);
  }
  EXPECT_EQ(e8m0_value(127), 1.0F);
  EXPECT_EQ(e8m0_value(0), 0x1p-127F);
  EXPECT_EQ(e8m0_value(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

// Each column's code and group, found by hand.
TEST(WeightFormat, DecodesCodes) {
  for (const WeightFormat format : kWeightFormats) {
    if (!is_coded(format)) continue;
    const PackedLayout layout = packed_layout(format);
    constexpr int64_t kColumns = 512 + 100;
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(format, kColumns)));
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(37 * i + 11);
    std::vector<float> expected(kColumns);
    for (int64_t c = 0; c < kColumns; ++c) {
      std::byte* block = row.data() + c / 512 * packed_block_bytes(format);
      const int64_t group = c % 512 / layout.group;
      float scale = 0;
      float zero = 0;
      if (format == WeightFormat::mxfp4) {
        block[group] = static_cast<std::byte>(120 + group);
        scale = std::ldexp(1.0F, static_cast<int>(group) - 7);
      } else {
        scale = 0.25F + static_cast<float>(group);
        auto word = std::bit_cast<uint32_t>(scale);
        if (format != WeightFormat::fp8 && format != WeightFormat::nf4) {
          word |= static_cast<uint32_t>(group + 3) % 16;
          zero = static_cast<float>((group + 3) % 16);
        }
        std::memcpy(block + 4 * group, &word, sizeof word);
      }
      const std::byte* elements = block + described_bytes(format);
      size_t code = 0;
      constexpr std::array<int64_t, 16> kPlaces = {0, 2, 4, 6, 8, 10, 12, 14,
                                                   1, 3, 5, 7, 9, 11, 13, 15};
      const int64_t place = kPlaces[static_cast<size_t>(c % 16)];
      if (format == WeightFormat::fp8) {
        code = std::to_integer<size_t>(elements[c % 512 / 16 * 16 + place]);
      } else {
        const auto both = std::to_integer<size_t>(elements[c % 512 / 32 * 16 + place]);
        code = c % 32 < 16 ? both & 15 : both >> 4;
      }
      expected[static_cast<size_t>(c)] = (code_values(format)[code] - zero) * scale;
    }
    std::vector<float> decoded(kColumns);
    decode_row(format, row.data(), nullptr, 0, decoded);
    for (size_t c = 0; c < decoded.size(); ++c) {
      if (std::isnan(expected[c])) {
        EXPECT_TRUE(std::isnan(decoded[c]));
      } else {
        EXPECT_EQ(decoded[c], expected[c]) << format_name(format) << " column " << c;
      }
    }
    std::vector<float> part(100);
    decode_row(format, row.data(), nullptr, 512, part);
    for (size_t c = 0; c < part.size(); ++c) {
      EXPECT_TRUE(std::isnan(part[c]) ? std::isnan(decoded[512 + c]) : part[c] == decoded[512 + c]);
    }
  }
}

}  // namespace
}  // namespace faststream
