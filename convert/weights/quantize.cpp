#include "convert/weights/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "convert/weights/elements.h"

namespace faststream::convert {
namespace {

// Sums run in lanes, because the compiler may not reorder additions to vectorise them; in so many
// that it keeps their loop instead of unrolling it.
constexpr size_t kLanes = 64;

struct Sums {
  std::array<float, kLanes> error{};
  std::array<float, kLanes> norm{};
};

// count <= kLanes
void quantize_lanes(const float* weights, size_t count, float scale, int8_t* out, Sums& sums) {
  // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a call.
  constexpr float kRounder = 12582912.0F;
  std::array<float, kLanes> levels;
  for (size_t i = 0; i < count; ++i) {
    const float rounded = (weights[i] / scale + kRounder) - kRounder;
    const float low = rounded < -127.0F ? -127.0F : rounded;  // a subnormal scale is inexact
    levels[i] = low > 127.0F ? 127.0F : low;
  }
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<int8_t>(static_cast<int32_t>(levels[i]));
  }
  for (size_t i = 0; i < count; ++i) {
    const float difference = weights[i] - levels[i] * scale;
    sums.error[i] += difference * difference;
    sums.norm[i] += weights[i] * weights[i];
  }
}

using Int4Group = std::array<float, kInt4Group>;

// The levels that a scale gives, from -8 to 7.
Int4Group levels_of(const Int4Group& weights, float scale) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  Int4Group levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    constexpr float kRounder = 12582912.0F;  // as above
    const float rounded = (weights[i] * inverse + kRounder) - kRounder;
    const float low = rounded < -8.0F ? -8.0F : rounded;
    levels[i] = low > 7.0F ? 7.0F : low;
  }
  return levels;
}

float squared_error(const Int4Group& weights, const Int4Group& levels, float scale) {
  float error = 0;
  for (size_t i = 0; i < levels.size(); ++i) {
    const float difference = weights[i] - scale * levels[i];
    error += difference * difference;
  }
  return error;
}

// The scale that suits the levels best, as it is stored.
Float16 fitted_scale(const Int4Group& weights, const Int4Group& levels) {
  float products = 0;
  float squares = 0;
  for (size_t i = 0; i < levels.size(); ++i) {
    products += weights[i] * levels[i];
    squares += levels[i] * levels[i];
  }
  return Float16(squares > 0 ? products / squares : 0);
}

// -8 is a level and 8 is none, so that the largest magnitude may be either's.
Float16 int4_scale(const Int4Group& weights) {
  float largest = 0;
  for (const float weight : weights) {
    if (std::abs(weight) > std::abs(largest)) largest = weight;
  }
  Float16 best(0.0F);
  float least = std::numeric_limits<float>::infinity();
  for (const float more : {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 2.5F, 3.0F}) {
    const float divisor = kLeastInt4Divisor + more;
    for (const float sign : {-1.0F, 1.0F}) {
      const float tried = largest / (sign * divisor);
      const Float16 scale = fitted_scale(weights, levels_of(weights, tried));
      const auto stored = static_cast<float>(scale);
      const float error = squared_error(weights, levels_of(weights, stored), stored);
      if (error < least && std::isfinite(stored)) {
        least = error;
        best = scale;
      }
    }
  }
  return best;
}

}  // namespace

RowError quantize_row_int4(std::span<const float> row, std::byte* out, std::byte* scales) {
  RowError result;
  for (size_t first = 0; first < row.size(); first += kInt4Group) {
    Int4Group weights{};
    std::ranges::copy(row.subspan(first, std::min<size_t>(kInt4Group, row.size() - first)),
                      weights.begin());
    const Float16 scale = int4_scale(weights);
    const auto stored = static_cast<float>(scale);
    const Int4Group levels = levels_of(weights, stored);
    for (size_t i = 0; i < kInt4Group / 2; ++i) {
      const auto low = static_cast<uint8_t>(levels[i] + 8);
      const auto high = static_cast<uint8_t>(levels[i + kInt4Group / 2] + 8);
      *out++ = static_cast<std::byte>(low | high << 4);
    }
    std::memcpy(scales, &scale, sizeof scale);
    scales += sizeof scale;
    result.squared_error += squared_error(weights, levels, stored);
    result.squared_norm += squared_error(weights, levels, 0);
  }
  return result;
}

std::optional<RowError> quantize(WeightFormat format, std::span<const float> row, std::byte* out,
                                 std::byte* scales) {
  if (format == WeightFormat::int4) {
    if (!std::isfinite(largest_magnitude(row))) return std::nullopt;
    return quantize_row_int4(row, out, scales);
  }
  const QuantizedRow result = quantize_row(row, {reinterpret_cast<int8_t*>(out), row.size()});
  if (!std::isfinite(result.scale)) return std::nullopt;
  std::memcpy(scales, &result.scale, sizeof result.scale);
  return static_cast<const RowError&>(result);
}

QuantizedRow quantize_row(std::span<const float> row, std::span<int8_t> out) {
  QuantizedRow result;
  result.scale = largest_magnitude(row) / 127.0F;
  if (!std::isfinite(result.scale)) return result;
  if (result.scale == 0) {
    std::ranges::fill(out, int8_t{0});
    return result;
  }
  // Long rows are summed in pieces: a float sum of thousands of squares would lose digits.
  constexpr size_t kPiece = 1024;
  for (size_t first = 0; first < row.size(); first += kPiece) {
    const size_t end = std::min(first + kPiece, row.size());
    Sums sums;
    for (size_t i = first; i < end; i += kLanes) {
      quantize_lanes(&row[i], std::min(kLanes, end - i), result.scale, &out[i], sums);
    }
    result.squared_error += std::accumulate(sums.error.begin(), sums.error.end(), 0.0);
    result.squared_norm += std::accumulate(sums.norm.begin(), sums.norm.end(), 0.0);
  }
  return result;
}

}  // namespace faststream::convert
