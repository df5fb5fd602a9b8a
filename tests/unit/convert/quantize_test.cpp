#include "convert/weights/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "convert/weights/elements.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream::convert {
namespace {

TEST(Quantize, KeepsEachWeightWithinHalfAScale) {
  for (const size_t size : {1U, 15U, 16U, 17U, 1000U, 4099U}) {
    const std::vector<float> row = random_values(size, 7);
    std::vector<int8_t> out(size);
    const QuantizedRow result = quantize_row(row, out);
    EXPECT_EQ(result.scale, largest_magnitude(row) / 127);
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < size; ++i) {
      const double difference = double{row[i]} - double{result.scale} * out[i];
      // Half a scale, and the rounding of the division in float.
      EXPECT_LE(std::abs(difference), 0.5 * double{result.scale} * (1 + 1e-5)) << i;
      EXPECT_GE(out[i], -127);
      error += difference * difference;
      norm += double{row[i]} * row[i];
    }
    EXPECT_NEAR(result.squared_error, error, 1e-4 * norm);
    EXPECT_NEAR(result.squared_norm, norm, 1e-5 * norm);
  }
}

// Rows of whole groups, with a last one of fewer columns, and of less than one.
TEST(Quantize, Int4GroupsComeBackAsNearAsTheirLevelsAllow) {
  for (const size_t size : {1U, 31U, 32U, 33U, 64U, 1000U}) {
    const std::vector<float> row = random_values(size, 7);
    const auto cols = static_cast<int64_t>(size);
    constexpr WeightFormat kFormat = WeightFormat::int4;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(kFormat, cols)));
    std::vector<std::byte> scales(static_cast<size_t>(scale_shape(kFormat).row_bytes()));
    const RowError result = quantize_row_int4(row, nullptr, bytes.data(), scales.data());
    std::vector<float> decoded(size);
    decode_row(kFormat, bytes.data(), scales.data(), 0, decoded);
    double error = 0;
    // With a scale of each group's largest magnitude / 7. Steps are whole multiples of the row's
    // scale, so that groups of a single weight are not as exact.
    double plain_error = 0;
    double norm = 0;
    for (size_t first = 0; first < size; first += kInt4Group) {
      const auto group = std::span(row).subspan(first, std::min<size_t>(kInt4Group, size - first));
      const double step = double{largest_magnitude(group)} / 7;
      for (size_t i = 0; i < group.size(); ++i) {
        error += std::pow(double{group[i]} - double{decoded[first + i]}, 2);
        plain_error += std::pow(group[i] - step * std::round(group[i] / step), 2);
        norm += double{group[i]} * group[i];
      }
    }
    EXPECT_LE(error, plain_error + 2e-5 * norm) << size;
    EXPECT_NEAR(result.squared_error, error, 1e-4 * norm) << size;
    EXPECT_NEAR(result.squared_norm, norm, 1e-5 * norm) << size;
    // A part that begins at a block is what the whole has there.
    if (size <= kInt4Block) continue;
    std::vector<float> part(size - kInt4Block);
    decode_row(kFormat, bytes.data(), scales.data(), kInt4Block, part);
    EXPECT_TRUE(std::ranges::equal(part, std::span(decoded).subspan(kInt4Block))) << size;
  }
}

TEST(Quantize, Int4KeepsWhatItHoldsExactly) {
  std::vector<float> row;
  for (int i = 0; i < 2 * kInt4Group; ++i) {
    row.push_back(static_cast<float>(i % 16 - 8) * (i < kInt4Group ? 0.25F : 3.75F));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, 64)));
  std::vector<std::byte> scales(sizeof(float));
  EXPECT_NEAR(quantize_row_int4(row, nullptr, bytes.data(), scales.data()).squared_error, 0, 1e-8);
  std::vector<float> decoded(row.size());
  decode_row(WeightFormat::int4, bytes.data(), scales.data(), 0, decoded);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(decoded[i], row[i], 1e-5) << i;
  // Steps 1 and 15 of the scale, offsets of 8 of them. Column 0 is the lower half of its byte, and
  // column 16 the upper half: -8 both.
  EXPECT_EQ(bytes[0], std::byte{0x81});
  EXPECT_EQ(bytes[1], std::byte{0x8F});
  EXPECT_EQ(bytes[kInt4CodeBytes], std::byte{0});
  EXPECT_EQ(bytes[kInt4CodeBytes + 1], std::byte{0x11});
}

// Whatever the number is; in a row's last group, too, whose other columns are 0.
TEST(Quantize, Int4KeepsFewMultiplesOfANumberToTheBit) {
  constexpr size_t kColumns = 2 * kInt4Group - 5;
  for (const float number : {0.1F, 0.0371093F, 3e-20F}) {
    std::vector<float> row;
    for (size_t i = 0; i < kColumns; ++i) {
      row.push_back(static_cast<float>(static_cast<int>(i % 16) - 4) * number);
    }
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, kColumns)));
    std::vector<std::byte> scales(sizeof(float));
    EXPECT_EQ(quantize_row_int4(row, nullptr, bytes.data(), scales.data()).squared_error, 0);
    std::vector<float> decoded(2 * kInt4Group);
    decode_row(WeightFormat::int4, bytes.data(), scales.data(), 0, decoded);
    row.resize(decoded.size());
    EXPECT_EQ(decoded, row);
  }
}

TEST(Quantize, Int4OfZerosIsZerosAndOfNanNothing) {
  std::vector<float> row(kInt4Group, 0.0F);
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, kInt4Group)));
  std::vector<std::byte> scales(sizeof(float));
  EXPECT_TRUE(
      quantize(WeightFormat::int4, row, nullptr, {}, bytes.data(), scales.data()).has_value());
  std::vector<float> decoded(row.size(), 1);
  decode_row(WeightFormat::int4, bytes.data(), scales.data(), 0, decoded);
  EXPECT_EQ(decoded, row);
  row[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(
      quantize(WeightFormat::int4, row, nullptr, {}, bytes.data(), scales.data()).has_value());
}

// An int4 matrix is an int8 one whatever its bytes are.
TEST(Quantize, Int4LevelsAreBytes) {
  for (int code = 0; code < 256; ++code) {
    const Int4Levels levels(static_cast<std::byte>(code));
    EXPECT_EQ(levels.step, code % 16);
    EXPECT_GE(levels[0], -127) << code;
    EXPECT_LE(levels[15], 127) << code;
  }
}

TEST(Quantize, RoundsToNearest) {
  const std::vector<float> row = {127, 0.4F, 0.6F, -0.6F, -1.4F, 2.5F, -127};
  std::vector<int8_t> out(row.size());
  EXPECT_EQ(quantize_row(row, out).scale, 1.0F);
  EXPECT_EQ(out, (std::vector<int8_t>{127, 0, 1, -1, -1, 2, -127}));
}

TEST(Quantize, MakesZerosOfARowOfZeros) {
  const std::vector<float> row = {0, -0.0F, 0};
  std::vector<int8_t> out(3, 1);
  EXPECT_EQ(quantize_row(row, out).scale, 0.0F);
  EXPECT_EQ(out, std::vector<int8_t>(3, 0));
}

TEST(Quantize, TellsOfARowThatIsNotFinite) {
  for (const float value : {std::numeric_limits<float>::infinity(), -NAN}) {
    std::vector<int8_t> out(3, 7);
    EXPECT_FALSE(std::isfinite(quantize_row(std::vector<float>{1, value, 2}, out).scale));
    EXPECT_EQ(out, (std::vector<int8_t>(3, 7)));
  }
}

TEST(Quantize, SurvivesTheSmallestAndLargestNumbers) {
  std::vector<int8_t> out(2);
  for (const float value : {std::numeric_limits<float>::denorm_min(), 1e-43F, 1e-38F,
                            std::numeric_limits<float>::max()}) {
    const std::vector<float> row = {value, -value};
    const QuantizedRow result = quantize_row(row, out);
    EXPECT_EQ(out[0], -out[1]);
    EXPECT_LE(std::abs(double{value} - double{result.scale} * out[0]),
              std::max(0.5 * double{result.scale}, 1e-43));
  }
}

// What 16 bits mean by IEEE 754's definition.
float value_of(int bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
  double value = std::ldexp(mantissa + hidden, std::max(exponent, 1) - bias - mantissa_bits);
  if (exponent == 0x7fff >> mantissa_bits) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

TEST(Elements, DecodeEveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(halves.size());
  for (const ElementFormat* format : {&kF16Format, &kBf16Format}) {
    format->decode(reinterpret_cast<const std::byte*>(halves.data()), floats);
    const int mantissa_bits = format == &kF16Format ? 10 : 7;
    const int bias = format == &kF16Format ? 15 : 127;
    for (size_t i = 0; i < halves.size(); ++i) {
      const float expected = value_of(halves[i], mantissa_bits, bias);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(floats[i])) << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << i;
      }
    }
  }
}

TEST(Elements, NarrowToTheNearestAndToEvenInBetween) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const int mantissa_bits = type == DType::f16 ? 10 : 7;
    const int bias = type == DType::f16 ? 15 : 127;
    const int infinity = 0x7fff >> mantissa_bits << mantissa_bits;
    for (int bits = 0; bits + 1 < infinity; ++bits) {
      const float low = value_of(bits, mantissa_bits, bias);
      const float high = value_of(bits + 1, mantissa_bits, bias);
      const auto middle = static_cast<float>((double{low} + high) / 2);
      const std::vector<float> values = {low, std::nextafter(middle, low), middle,
                                         std::nextafter(middle, high), -high};
      std::vector<uint16_t> out(values.size());
      narrow(values, type, reinterpret_cast<std::byte*>(out.data()));
      const int even = bits + (bits & 1);
      const std::vector<uint16_t> expected = {
          static_cast<uint16_t>(bits), static_cast<uint16_t>(bits), static_cast<uint16_t>(even),
          static_cast<uint16_t>(bits + 1), static_cast<uint16_t>((bits + 1) | 0x8000)};
      ASSERT_EQ(out, expected) << dtype_name(type) << ' ' << bits;
    }
  }
}

TEST(Elements, NarrowAsStoreFloatDoes) {
  std::vector<float> values = random_values(1000, 3);
  values.insert(values.end(), {0.0F, -0.0F, 65504.0F, 65519.0F, 1e-7F, 6e-8F, 1e-10F});
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::byte> out(values.size() * dtype_size(type));
    std::vector<std::byte> expected(out.size());
    narrow(values, type, out.data());
    for (size_t i = 0; i < values.size(); ++i) store_float(expected.data(), type, i, values[i]);
    EXPECT_EQ(out, expected);
  }
}

TEST(Elements, KnowWhereNarrowingOverflows) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const float limit = overflow_magnitude(format_of(type));
    const std::vector<float> values = {std::nextafter(limit, 0.0F), limit};
    std::vector<std::byte> out(values.size() * dtype_size(type));
    narrow(values, type, out.data());
    EXPECT_TRUE(std::isfinite(load_as_float(out.data(), type, 0)));
    EXPECT_TRUE(std::isinf(load_as_float(out.data(), type, 1)));
  }
}

TEST(Elements, FindTheLargestMagnitudeAndWhatIsNotFinite) {
  EXPECT_EQ(largest_magnitude({}), 0.0F);
  EXPECT_EQ(largest_magnitude(std::vector<float>{1, -3, 2}), 3.0F);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(largest_magnitude(std::vector<float>{1, -infinity, 2})));
  EXPECT_FALSE(std::isfinite(largest_magnitude(std::vector<float>{1, -NAN, 2})));
}

}  // namespace
}  // namespace faststream::convert
