// int4: a row's scale, then for each group the levels of the least squared error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "convert/weights/elements.h"
#include "convert/weights/quantize.h"

namespace faststream::convert {
namespace {

constexpr int32_t kMostQ = 15;
constexpr int32_t kMostStep = 15;
constexpr int32_t kMostHigh = 15;  // of a code's high half

// Weights in units of their row's scale. What the row's last group has too many is 0, and has no
// part in the error.
struct Group {
  std::array<float, kInt4Group> weights{};
  size_t count = 0;

  [[nodiscard]] std::span<const float> present() const { return {weights.data(), count}; }
};

std::byte code_of(int32_t step, int32_t high) { return static_cast<std::byte>(step | high << 4); }

// The nearest q of each weight.
std::array<float, kInt4Group> nearest(const Group& group, const Int4Levels& levels) {
  const float inverse = levels.step > 0 ? 1 / static_cast<float>(levels.step) : 0;
  const auto offset = static_cast<float>(levels.offset);
  std::array<float, kInt4Group> q;
  for (size_t i = 0; i < q.size(); ++i) {
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a call.
    constexpr float kRounder = 12582912.0F;
    const float rounded = ((group.weights[i] + offset) * inverse + kRounder) - kRounder;
    const float low = rounded < 0 ? 0 : rounded;
    q[i] = low > kMostQ ? kMostQ : low;
  }
  return q;
}

float squared_error(const Group& group, const Int4Levels& levels) {
  const std::array<float, kInt4Group> q = nearest(group, levels);
  const auto step = static_cast<float>(levels.step);
  const auto offset = static_cast<float>(levels.offset);
  std::array<float, kInt4Group> squares;
  for (size_t i = 0; i < q.size(); ++i) {
    const float difference = group.weights[i] - (step * q[i] - offset);
    squares[i] = difference * difference;
  }
  float sum = 0;
  for (size_t i = 0; i < group.count; ++i) sum += squares[i];
  return sum;
}

// Of steps that hold the group's range, or less of it, and of offsets about the middle.
std::byte best_code(const Group& group) {
  const auto [low, high] = std::ranges::minmax(group.present());
  constexpr float kFarthest = 11;  // steps that levels reach to either side
  const auto whole = static_cast<int32_t>(
      std::ceil(std::max({(high - low) / kMostQ, high / kFarthest, -low / kFarthest})));
  std::byte best{};
  float least = std::numeric_limits<float>::infinity();
  const int32_t most = std::clamp(whole, 1, kMostStep);
  for (int32_t step = std::max(1, most * 2 / 3); step <= most; ++step) {
    const float middle = (low + high) / 2;
    const float twice = (kMostQ * static_cast<float>(step) - 2 * middle) / static_cast<float>(step);
    const auto about = static_cast<int32_t>(std::lround(twice)) - 8;
    for (int32_t h = about - 1; h <= about + 1; ++h) {
      const std::byte code = code_of(step, std::clamp(h, 0, kMostHigh));
      const float error = squared_error(group, Int4Levels(code));
      if (error < least) {
        least = error;
        best = code;
      }
    }
  }
  return best;
}

// So that the widest group has levels for all of its range, and none leaves that of a byte.
float scale_of(std::span<const float> row) {
  float widest = 0;
  for (size_t first = 0; first < row.size(); first += kInt4Group) {
    const auto [low, high] =
        std::ranges::minmax(row.subspan(first, std::min<size_t>(kInt4Group, row.size() - first)));
    widest = std::max(widest, high / (kMostQ * kMostStep) - low / (kMostQ * kMostStep));
  }
  return std::max(widest, largest_magnitude(row) / 127);
}

}  // namespace

RowError quantize_row_int4(std::span<const float> row, std::byte* out, std::byte* scales) {
  constexpr int64_t kGroups = kInt4Block / kInt4Group;
  const float scale = scale_of(row);
  const float inverse = scale > 0 ? 1 / scale : 0;
  const auto cols = static_cast<int64_t>(row.size());
  std::memset(out, 0, static_cast<size_t>(row_bytes(WeightFormat::int4, cols)));
  std::memcpy(scales, &scale, sizeof scale);
  RowError result;
  for (int64_t n = 0; n * kInt4Group < cols; ++n) {
    Group group;
    group.count = static_cast<size_t>(std::min(kInt4Group, cols - n * kInt4Group));
    const auto weights = row.subspan(static_cast<size_t>(n * kInt4Group), group.count);
    std::ranges::transform(weights, group.weights.begin(),
                           [inverse](float weight) { return weight * inverse; });
    const std::byte code = scale > 0 ? best_code(group) : std::byte{};
    const Int4Levels levels(code);
    const std::array<float, kInt4Group> q = nearest(group, levels);
    std::byte* codes = out + row_bytes(WeightFormat::int4, n / kGroups * kInt4Block);
    codes[n % kGroups] = code;
    std::byte* bytes = codes + kInt4CodeBytes + n % kGroups * kInt4GroupBytes;
    for (size_t i = 0; i < kInt4GroupBytes; ++i) {
      bytes[i] = static_cast<std::byte>(static_cast<uint8_t>(q[i]) |
                                        static_cast<uint8_t>(q[i + kInt4GroupBytes]) << 4);
    }
    for (size_t i = 0; i < group.count; ++i) {
      const float stored = scale * static_cast<float>(levels[static_cast<int32_t>(q[i])]);
      const double difference = double{weights[i]} - double{stored};
      result.squared_error += difference * difference;
      result.squared_norm += double{weights[i]} * double{weights[i]};
    }
  }
  return result;
}

}  // namespace faststream::convert
