#include "convert/quantize.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "convert/elements.h"

namespace faststream {
namespace {

// Sums run in lanes, because the compiler may not reorder additions to vectorise them.
constexpr size_t kLanes = 16;

struct Sums {
  std::array<float, kLanes> error{};
  std::array<float, kLanes> norm{};
};

void quantize_lane(float weight, float scale, int8_t& out, float& error, float& norm) {
  // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a call.
  constexpr float kRounder = 12582912.0F;
  const float rounded = (weight / scale + kRounder) - kRounder;
  const float level = std::clamp(rounded, -127.0F, 127.0F);  // a subnormal scale is inexact
  out = static_cast<int8_t>(level);
  const float difference = weight - level * scale;
  error += difference * difference;
  norm += weight * weight;
}

}  // namespace

QuantizedRow quantize_row(std::span<const float> row, std::span<int8_t> out) {
  QuantizedRow result;
  result.scale = largest_magnitude(row) / 127.0F;
  if (result.scale == 0) {
    std::ranges::fill(out, int8_t{0});
    return result;
  }
  // Long rows are summed in pieces: a float sum of thousands of squares would lose digits.
  constexpr size_t kPiece = 1024;
  for (size_t first = 0; first < row.size(); first += kPiece) {
    const size_t end = std::min(first + kPiece, row.size());
    Sums sums;
    size_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        quantize_lane(row[i + lane], result.scale, out[i + lane], sums.error[lane],
                      sums.norm[lane]);
      }
    }
    for (; i < end; ++i) quantize_lane(row[i], result.scale, out[i], sums.error[0], sums.norm[0]);
    result.squared_error += std::accumulate(sums.error.begin(), sums.error.end(), 0.0);
    result.squared_norm += std::accumulate(sums.norm.begin(), sums.norm.end(), 0.0);
  }
  return result;
}

}  // namespace faststream
