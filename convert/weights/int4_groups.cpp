#include "convert/weights/int4_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "convert/weights/elements.h"

namespace faststream::convert {
namespace {

constexpr int32_t kMostStep = 15;
constexpr int32_t kMostHigh = 15;  // of a code's high half
constexpr size_t kErrorLanes = 8;  // in which errors are summed, which the compiler can vectorise

std::byte code_of(int32_t step, int32_t high) { return static_cast<std::byte>(step | high << 4); }

float nearest_q(float weight, float offset, float inverse) {
  // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a call.
  constexpr float kRounder = 12582912.0F;
  const float rounded = ((weight + offset) * inverse + kRounder) - kRounder;
  const float low = rounded < 0 ? 0 : rounded;
  return low > kMostInt4Q ? kMostInt4Q : low;
}

float squared_error(const Int4Weights& group, const Int4Levels& levels) {
  const auto step = static_cast<float>(levels.step);
  const auto offset = static_cast<float>(levels.offset);
  const float inverse = 1 / step;
  std::array<float, kErrorLanes> sums{};
  for (size_t first = 0; first < kInt4Columns; first += kErrorLanes) {
    for (size_t i = 0; i < kErrorLanes; ++i) {
      const float weight = group.weights[first + i];
      const float difference = weight + offset - step * nearest_q(weight, offset, inverse);
      sums[i] += group.importance[first + i] * difference * difference;
    }
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

void Int4Weights::set(std::span<const float> values, std::span<const float> importance_of,
                      float inverse) {
  count = values.size();
  weights.fill(0);
  importance.fill(0);
  for (size_t i = 0; i < count; ++i) weights[i] = values[i] * inverse;
  for (size_t i = 0; i < count; ++i) importance[i] = importance_of.empty() ? 1 : importance_of[i];
}

std::array<Int4Candidate, kInt4Candidates> best_int4_codes(const Int4Weights& group) {
  const auto [low, high] = std::ranges::minmax(group.present());
  constexpr float kFarthest = 11;  // steps that levels reach to either side
  const auto whole = static_cast<int32_t>(
      std::ceil(std::max({(high - low) / kMostInt4Q, high / kFarthest, -low / kFarthest})));
  const float middle = (low + high) / 2;
  std::array<Int4Candidate, kInt4Candidates> best;
  best.fill({.error = std::numeric_limits<float>::infinity()});
  const int32_t most = std::clamp(whole, 1, kMostStep);
  for (int32_t step = std::max(1, most * 2 / 3); step <= most; ++step) {
    const float twice =
        (kMostInt4Q * static_cast<float>(step) - 2 * middle) / static_cast<float>(step);
    const auto about = static_cast<int32_t>(std::lround(twice)) - 8;
    const int32_t last = std::clamp(about + 1, 0, kMostHigh);
    for (int32_t h = std::clamp(about - 1, 0, kMostHigh); h <= last; ++h) {
      const std::byte code = code_of(step, h);
      const float error = squared_error(group, Int4Levels(code));
      for (size_t i = 0; i < best.size(); ++i) {
        if (error >= best[i].error) continue;
        std::move_backward(best.begin() + static_cast<std::ptrdiff_t>(i), best.end() - 1,
                           best.end());
        best[i] = {code, error};
        break;
      }
    }
  }
  return best;
}

std::array<float, kInt4Columns> nearest_int4(const Int4Weights& group, const Int4Levels& levels) {
  const float inverse = levels.step > 0 ? 1 / static_cast<float>(levels.step) : 0;
  std::array<float, kInt4Columns> q;
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = nearest_q(group.weights[i], static_cast<float>(levels.offset), inverse);
  }
  return q;
}

float int4_scale(std::span<const float> row) {
  float widest = 0;
  for (size_t first = 0; first < row.size(); first += kInt4Columns) {
    const auto [low, high] =
        std::ranges::minmax(row.subspan(first, std::min(kInt4Columns, row.size() - first)));
    constexpr int32_t kWidest = kMostInt4Q * kMostStep;
    widest = std::max(widest, high / kWidest - low / kWidest);
  }
  return std::max(widest, largest_magnitude(row) / 127);
}

void store_int4(int64_t n, std::byte code, std::span<const float, kInt4Columns> q, std::byte* row) {
  constexpr int64_t kGroups = kInt4Block / kInt4Group;
  std::byte* codes = row + row_bytes(WeightFormat::int4, n / kGroups * kInt4Block);
  codes[n % kGroups] = code;
  std::byte* bytes = codes + kInt4CodeBytes + n % kGroups * kInt4GroupBytes;
  for (size_t i = 0; i < kInt4GroupBytes; ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<uint8_t>(q[i]) |
                                      static_cast<uint8_t>(q[i + kInt4GroupBytes]) << 4);
  }
}

}  // namespace faststream::convert
