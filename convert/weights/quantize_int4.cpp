// int4: a row's scale, then for each group the levels of the least squared error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "convert/weights/input_metric.h"
#include "convert/weights/int4_groups.h"
#include "convert/weights/quantize.h"

namespace faststream::convert {
namespace {

struct QuantizedGroup {
  std::byte code{};
  std::array<float, kInt4Columns> q{};
};

struct QuantizedInt4 {
  float scale = 0;
  std::vector<QuantizedGroup> groups = {};
};

std::span<const float> group_of(std::span<const float> row, size_t n) {
  const size_t first = n * kInt4Columns;
  return row.subspan(first, std::min(kInt4Columns, row.size() - first));
}

// Each group by itself; the sum of their errors, in units of the scale's square.
double choose_groups(std::span<const float> row, QuantizedInt4& result) {
  double error = 0;
  Int4Weights group;
  for (size_t n = 0; n < result.groups.size(); ++n) {
    group.set(group_of(row, n), {}, 1 / result.scale);
    const Int4Candidate best = best_int4_codes(group)[0];
    result.groups[n] = {best.code, nearest_int4(group, Int4Levels(best.code))};
    error += double{best.error};
  }
  return error;
}

// The scale of the least squares beside levels as they are.
float fitted_scale(std::span<const float> row, const QuantizedInt4& quantized) {
  double products = 0;
  double squares = 0;
  for (size_t n = 0; n < quantized.groups.size(); ++n) {
    const QuantizedGroup& group = quantized.groups[n];
    const Int4Levels levels(group.code);
    const std::span<const float> weights = group_of(row, n);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double level = levels[static_cast<int32_t>(group.q[i])];
      products += double{weights[i]} * level;
      squares += level * level;
    }
  }
  return squares > 0 ? static_cast<float>(products / squares) : quantized.scale;
}

QuantizedInt4 quantize_apart(std::span<const float> row, QuantizedInt4 quantized) {
  const double error = choose_groups(row, quantized);
  QuantizedInt4 refitted = quantized;
  refitted.scale = fitted_scale(row, quantized);
  if (!(refitted.scale > 0)) return quantized;
  const double refitted_error = choose_groups(row, refitted);
  const auto squared = [](float scale) { return double{scale} * double{scale}; };
  const bool better = refitted_error * squared(refitted.scale) < error * squared(quantized.scale);
  return better ? refitted : quantized;
}

// Rounds the columns of a group one after the other, as input_metric.h says. `factor` is that of
// its first column, in rows of `size`.
struct FedBack {
  float error = 0;                                  // that nothing makes up for
  std::array<float, kInt4Columns> q{};              // of each column
  std::array<float, kInt4Columns> errors_by_own{};  // e_i / U_ii
};
FedBack round_in_order(const Int4Weights& group, const Int4Levels& levels, const float* factor,
                       size_t size) {
  FedBack result;
  std::array<float, kInt4Columns> weights = group.weights;
  const auto step = static_cast<float>(levels.step);
  const auto offset = static_cast<float>(levels.offset);
  for (size_t i = 0; i < group.count; ++i) {
    const float* own = factor + i * size;  // U_ij, j from the group's first column on
    const float q = std::clamp(std::round((weights[i] + offset) / step), 0.0F, float{kMostInt4Q});
    const float error = (weights[i] + offset - step * q) / own[i];
    for (size_t j = i + 1; j < group.count; ++j) weights[j] -= error * own[j];
    result.q[i] = q;
    result.errors_by_own[i] = error;
    result.error += error * error;
  }
  return result;
}

QuantizedInt4 quantize_by(const InputMetric& metric, std::span<const float> row,
                          QuantizedInt4 quantized) {
  std::vector<float> weights(row.begin(), row.end());  // changed by what others got wrong
  Int4Weights group;
  for (const InputMetric::Block& block : metric.blocks()) {
    const auto size = static_cast<size_t>(block.size);
    const std::span<float> of_block =
        std::span(weights).subspan(static_cast<size_t>(block.first), size);
    for (size_t at = 0; at < size; at += kInt4Columns) {
      const size_t count = std::min(kInt4Columns, size - at);
      const float* factor = &block.factor[at * size + at];
      group.set(of_block.subspan(at, count), std::span(block.importance).subspan(at, count),
                1 / quantized.scale);
      // Which levels are best is seen once columns have made up for each other.
      FedBack best{.error = std::numeric_limits<float>::infinity()};
      std::byte code{};
      for (const Int4Candidate& candidate : best_int4_codes(group)) {
        if (candidate.code == std::byte{}) continue;  // there were fewer
        const FedBack fed_back = round_in_order(group, Int4Levels(candidate.code), factor, size);
        if (!(fed_back.error < best.error)) continue;
        best = fed_back;
        code = candidate.code;
      }
      quantized.groups[(static_cast<size_t>(block.first) + at) / kInt4Columns] = {code, best.q};
      for (size_t i = 0; i < count; ++i) {
        const float error = best.errors_by_own[i] * quantized.scale;
        const float* own = factor + i * size - at;
        for (size_t j = at + count; j < size; ++j) of_block[j] -= error * own[j];
      }
    }
  }
  return quantized;
}

}  // namespace

RowError quantize_row_int4(std::span<const float> row, const InputMetric* metric, std::byte* out,
                           std::byte* scales) {
  QuantizedInt4 quantized{.scale = int4_scale(row)};
  quantized.groups.resize((row.size() + kInt4Columns - 1) / kInt4Columns);
  if (quantized.scale > 0 && std::isfinite(1 / quantized.scale)) {
    quantized = metric != nullptr ? quantize_by(*metric, row, std::move(quantized))
                                  : quantize_apart(row, std::move(quantized));
  } else {
    quantized.scale = 0;
  }
  std::memset(out, 0,
              static_cast<size_t>(row_bytes(WeightFormat::int4, static_cast<int64_t>(row.size()))));
  std::memcpy(scales, &quantized.scale, sizeof quantized.scale);
  RowError result;
  for (size_t n = 0; n < quantized.groups.size(); ++n) {
    const QuantizedGroup& group = quantized.groups[n];
    store_int4(static_cast<int64_t>(n), group.code, group.q, out);
    const Int4Levels levels(group.code);
    const std::span<const float> weights = group_of(row, n);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double level = levels[static_cast<int32_t>(group.q[i])];
      const double difference = double{weights[i]} - double{quantized.scale} * level;
      result.squared_error += difference * difference;
      result.squared_norm += double{weights[i]} * double{weights[i]};
    }
  }
  return result;
}

}  // namespace faststream::convert
