#include "convert/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "checkpoint_files.h"
#include "convert/elements.h"

namespace faststream {
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

TEST(Elements, WidenEveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(halves.size());
  for (const DType type : {DType::f16, DType::bf16}) {
    const auto* bytes = reinterpret_cast<const std::byte*>(halves.data());
    widen(bytes, type, floats);
    for (size_t i = 0; i < halves.size(); ++i) {
      const float expected = load_as_float(bytes, type, i);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(floats[i])) << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << i;
      }
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
    const float limit = overflow_magnitude(type);
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
}  // namespace faststream
