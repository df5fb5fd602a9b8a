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

}  // namespace

std::optional<RowError> quantize(WeightFormat format, std::span<const float> row,
                                 const InputMetric* metric, std::span<const float> known,
                                 std::byte* out, std::byte* scales) {
  if (format != WeightFormat::int8) {
    if (!std::isfinite(largest_magnitude(row))) return std::nullopt;
    return is_coded(format) ? quantize_row_coded(format, row, known, out)
                            : quantize_row_int4(row, metric, out, scales);
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
