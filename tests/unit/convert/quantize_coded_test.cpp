#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "convert/weights/elements.h"
#include "convert/weights/quantize.h"
#include "support/dtype.h"
#include "support/small_floats.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream::convert {
namespace {

std::vector<WeightFormat> coded_formats() {
  std::vector<WeightFormat> formats;
  for (const WeightFormat format : kWeightFormats) {
    if (is_coded(format)) formats.push_back(format);
  }
  return formats;
}

struct CodedRow {
  RowError error;
  std::vector<float> values;
};
CodedRow coded(WeightFormat format, const std::vector<float>& row,
               const std::vector<float>& known = {}) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(row_bytes(format, static_cast<int64_t>(row.size()))));
  CodedRow result{quantize_row_coded(format, row, known, bytes.data()),
                  std::vector<float>(row.size())};
  decode_row(format, bytes.data(), nullptr, 0, result.values);
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(QuantizeCoded, SaysHowFarItIsAndIsNearAsBitsAllow) {
  for (const WeightFormat format : coded_formats()) {
    for (const size_t size : {1U, 31U, 32U, 33U, 100U, 512U, 513U, 1700U}) {
      const std::vector<float> row = random_values(size, 3);
      const CodedRow result = coded(format, row);
      double error = 0;
      double norm = 0;
      for (size_t i = 0; i < size; ++i) {
        error += std::pow(double{row[i]} - double{result.values[i]}, 2);
        norm += double{row[i]} * double{row[i]};
      }
      EXPECT_NEAR(result.error.squared_error, error, 1e-9 * norm);
      EXPECT_NEAR(result.error.squared_norm, norm, 1e-5 * norm);
      const double most = format == WeightFormat::fp8     ? 0.03
                          : format == WeightFormat::mxfp4 ? 0.15
                                                          : 0.115;
      EXPECT_LE(std::sqrt(error / norm), most) << format_name(format) << ' ' << size;
    }
  }
}

TEST(QuantizeCoded, FindsAgainWhatItStored) {
  for (const WeightFormat format : coded_formats()) {
    for (const float scale : {1.0F, 1e-30F, 1e30F, 0x1p-120F}) {
      std::vector<float> row = random_values(1700, 5);
      for (float& value : row) value *= scale;
      const CodedRow first = coded(format, row);
      const CodedRow second = coded(format, first.values);
      EXPECT_EQ(second.error.squared_error, 0) << format_name(format) << ' ' << scale;
      EXPECT_EQ(first.values, second.values) << format_name(format) << ' ' << scale;
    }
  }
}

TEST(QuantizeCoded, FindsAnyCodesAgain) {
  for (const WeightFormat format : coded_formats()) {
    const PackedLayout layout = packed_layout(format);
    constexpr int64_t kColumns = 512 + 100;
    for (const float scale : {0.0123F, -3.0F, 1e-6F, 6.1e-5F, 0.0F}) {
      std::vector<float> row(kColumns);
      std::vector<float> known;
      const auto values = code_values(format);
      for (int64_t c = 0; c < kColumns; ++c) {
        const int64_t group = c / layout.group;
        size_t code = static_cast<size_t>(c * c + 5 * c + group) % values.size();
        if (format == WeightFormat::fp8 && code % 128 == 127) code = 3;  // NaN
        if (format == WeightFormat::nf4 && c % layout.group == 0) code = 15;
        float of_group = scale * static_cast<float>(1 + group % 3);
        float zero = 0;
        if (format == WeightFormat::mxfp4) {
          of_group = std::ldexp(1.0F, static_cast<int>(group * 25 % 200 - 120));
        } else if (format != WeightFormat::nf4 && format != WeightFormat::fp8) {
          of_group = static_cast<float>(group % 2 == 0 ? static_cast<float>(Float16(of_group))
                                                       : static_cast<float>(BFloat16(of_group)));
          zero = static_cast<float>(group * 7 % 16);
        }
        row[static_cast<size_t>(c)] = (values[code] - zero) * of_group;
        if (format == WeightFormat::fp8 && c % layout.group == 0) known.push_back(of_group);
      }
      const CodedRow result = coded(format, row, known);
      EXPECT_EQ(result.error.squared_error, 0) << format_name(format) << ' ' << scale;
      EXPECT_EQ(result.values, row) << format_name(format) << ' ' << scale;
      if (scale != 0) {
        EXPECT_TRUE(same_bits(result.values, row)) << format_name(format) << ' ' << scale;
      }
    }
  }
}

TEST(QuantizeCoded, StaysFiniteAtTheEndsOfFloats) {
  const float largest = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const WeightFormat format : coded_formats()) {
    for (const std::vector<float>& row :
         {std::vector<float>(33, 0.0F), std::vector<float>(33, -0.0F),
          std::vector<float>{largest, -largest, 1, 0}, std::vector<float>{least, -least, 3 * least},
          std::vector<float>{1e-40F, 2.7e-39F, -1e-38F, largest}}) {
      const CodedRow result = coded(format, row);
      EXPECT_TRUE(std::isfinite(result.error.squared_error)) << format_name(format);
      for (size_t i = 0; i < row.size(); ++i) {
        EXPECT_TRUE(std::isfinite(result.values[i])) << format_name(format) << ' ' << row[i];
        EXPECT_LE(std::abs(result.values[i] - row[i] / 2), largest_magnitude(row) / 2 * 1.2F)
            << format_name(format) << ' ' << row[i];
      }
    }
  }
}

TEST(QuantizeCoded, RefusesWhatIsNotFinite) {
  std::vector<float> row(40, 1.0F);
  row[35] = std::numeric_limits<float>::infinity();
  for (const WeightFormat format : coded_formats()) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(format, 40)));
    EXPECT_FALSE(quantize(format, row, nullptr, {}, bytes.data(), nullptr).has_value());
  }
}

}  // namespace
}  // namespace faststream::convert
