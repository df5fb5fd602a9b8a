// int4: a row's scale, then for each group the levels of the least squared error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>
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
  double error = 0;  // squared: of the weights, or what the product loses by it
};

size_t groups_of(std::span<const float> row) {
  return (row.size() + kInt4Columns - 1) / kInt4Columns;
}

std::span<const float> group_of(std::span<const float> row, size_t n) {
  const size_t first = n * kInt4Columns;
  return row.subspan(first, std::min(kInt4Columns, row.size() - first));
}

// Scales that are tried, as parts of the one with which the widest group has all of its range:
// most groups need less, and steps of another size may fit them better.
constexpr std::array kScales = {1.0F, 0.94F, 0.88F, 1.06F};
constexpr float kLeastScale = *std::ranges::min_element(kScales);

// The least error of those that quantize(scale) has with these.
template <typename Quantize>
QuantizedInt4 best_of_scales(float widest, const Quantize& quantize) {
  QuantizedInt4 best{.error = std::numeric_limits<double>::infinity()};
  for (const float part : kScales) {
    QuantizedInt4 quantized = quantize(part * widest);
    if (quantized.error < best.error) best = std::move(quantized);
  }
  return best;
}

// Each group by itself.
QuantizedInt4 choose_groups(std::span<const float> row, float scale) {
  QuantizedInt4 result{.scale = scale, .groups = std::vector<QuantizedGroup>(groups_of(row))};
  Int4Weights group;
  for (size_t n = 0; n < result.groups.size(); ++n) {
    group.set(group_of(row, n), {}, 1 / scale);
    const Int4Candidate best = best_int4_codes(group)[0];
    result.groups[n] = {best.code, nearest_int4(group, Int4Levels(best.code))};
    result.error += double{best.error} * double{scale} * double{scale};
  }
  return result;
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

QuantizedInt4 quantize_apart(std::span<const float> row, float widest) {
  QuantizedInt4 best =
      best_of_scales(widest, [row](float scale) { return choose_groups(row, scale); });
  const float fitted = fitted_scale(row, best);
  if (!(fitted > 0)) return best;
  QuantizedInt4 refitted = choose_groups(row, fitted);
  return refitted.error < best.error ? refitted : best;
}

// Of the level that is nearest to a weight in units of the row's scale.
float q_of(float weight, const Int4Levels& levels) {
  const float steps =
      (weight + static_cast<float>(levels.offset)) / static_cast<float>(levels.step);
  return std::clamp(std::round(steps), 0.0F, float{kMostInt4Q});
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
    const float q = q_of(weights[i], levels);
    const float error = (weights[i] + offset - step * q) / own[i];
    for (size_t j = i + 1; j < group.count; ++j) weights[j] -= error * own[j];
    result.q[i] = q;
    result.errors_by_own[i] = error;
    result.error += error * error;
  }
  return result;
}

QuantizedInt4 round_in_order(const InputMetric& metric, std::span<const float> row, float scale) {
  QuantizedInt4 quantized{.scale = scale, .groups = std::vector<QuantizedGroup>(groups_of(row))};
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
                1 / scale);
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
      quantized.error += double{best.error} * double{scale} * double{scale};
      for (size_t i = 0; i < count; ++i) {
        const float error = best.errors_by_own[i] * scale;
        const float* own = factor + i * size - at;
        for (size_t j = at + count; j < size; ++j) of_block[j] -= error * own[j];
      }
    }
  }
  return quantized;
}

// to += factor · H_i, a row of a block's moments.
void add_moments(const InputMetric::Block& block, size_t i, float factor, std::span<float> to) {
  const float* row = &block.moments[i * to.size()];
  for (size_t j = 0; j < to.size(); ++j) to[j] += factor * row[j];
}

// What a block of a row loses, e H eᵀ, and how its levels are to be changed.
class BlockFit {
 public:
  // `weights` in units of the row's scale.
  BlockFit(const InputMetric::Block& block, std::span<const float> weights,
           std::span<QuantizedGroup> groups)
      : block_(block), groups_(groups), levels_(weights.size()), lost_(weights.size()) {
    for (size_t i = 0; i < levels_.size(); ++i) {
      const QuantizedGroup& group = groups_[i / kInt4Columns];
      levels_[i] = level(group, group.q[i % kInt4Columns]);
      add_moments(block_, i, weights[i] - levels_[i], lost_);
    }
  }

  // Gives each column the level that loses least beside the others' as they are; false where all
  // have it.
  bool sweep() {
    bool has_changed = false;
    for (size_t i = 0; i < levels_.size(); ++i) {
      QuantizedGroup& group = groups_[i / kInt4Columns];
      if (group.code == std::byte{}) continue;
      const Int4Levels of_group(group.code);
      const float wanted = levels_[i] + lost_[i] / block_.moments[i * levels_.size() + i];
      const float q = q_of(wanted, of_group);
      float& own = group.q[i % kInt4Columns];
      if (q == own) continue;
      own = q;
      const float changed = level(group, q);
      add_moments(block_, i, levels_[i] - changed, lost_);
      levels_[i] = changed;
      has_changed = true;
    }
    return has_changed;
  }

  // Adds levels H weightsᵀ and levels H levelsᵀ, whose quotient times the scale loses least.
  void add_products(double& with_weights, double& with_levels) const {
    std::vector<float> of_levels(levels_.size());
    for (size_t i = 0; i < levels_.size(); ++i) add_moments(block_, i, levels_[i], of_levels);
    for (size_t i = 0; i < levels_.size(); ++i) {
      with_weights += double{levels_[i]} * (double{lost_[i]} + double{of_levels[i]});
      with_levels += double{levels_[i]} * double{of_levels[i]};
    }
  }

 private:
  static float level(const QuantizedGroup& group, float q) {
    return static_cast<float>(Int4Levels(group.code)[static_cast<int32_t>(q)]);
  }

  const InputMetric::Block& block_;
  std::span<QuantizedGroup> groups_;
  std::vector<float> levels_;
  std::vector<float> lost_;  // (weights - levels) H
};

// Columns have been rounded in an order, the first ones as if those after them could be anything:
// now that all have levels, each is fitted to the others by turns (coordinate descent,
// arXiv:2309.01885), and the scale to all.
void fit_levels(const InputMetric& metric, std::span<const float> row, QuantizedInt4& quantized) {
  constexpr int kRounds = 2;
  constexpr int kSweeps = 3;
  std::vector<float> weights(row.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < row.size(); ++i) weights[i] = row[i] / quantized.scale;
    double with_weights = 0;
    double with_levels = 0;
    for (const InputMetric::Block& block : metric.blocks()) {
      const auto first = static_cast<size_t>(block.first);
      BlockFit fit(block, std::span(weights).subspan(first, static_cast<size_t>(block.size)),
                   std::span(quantized.groups).subspan(first / kInt4Columns));
      for (int sweep = 0; sweep < kSweeps && fit.sweep(); ++sweep) {
      }
      fit.add_products(with_weights, with_levels);
    }
    if (with_weights > 0 && with_levels > 0) {
      quantized.scale *= static_cast<float>(with_weights / with_levels);
    }
  }
}

// A row whose weights are so few multiples of one number that all groups have them as their levels,
// a step of 1 apart.
std::optional<QuantizedInt4> exact_levels(std::span<const float> row) {
  constexpr std::byte kCode{1};
  const Int4Levels levels(kCode);
  float scale = std::numeric_limits<float>::infinity();
  for (const float weight : row) {
    if (weight != 0) scale = std::min(scale, std::abs(weight));
  }
  if (!std::isnormal(scale)) return std::nullopt;
  QuantizedGroup zeros{.code = kCode};
  zeros.q.fill(static_cast<float>(levels.offset));
  QuantizedInt4 result{.scale = scale, .groups = std::vector(groups_of(row), zeros)};
  for (size_t i = 0; i < row.size(); ++i) {
    const float q = q_of(row[i] / scale, levels);
    if (static_cast<float>(levels[static_cast<int32_t>(q)]) * scale != row[i]) return std::nullopt;
    result.groups[i / kInt4Columns].q[i % kInt4Columns] = q;
  }
  return result;
}

QuantizedInt4 quantize_by(const InputMetric& metric, std::span<const float> row, float widest) {
  QuantizedInt4 quantized =
      best_of_scales(widest, [&](float scale) { return round_in_order(metric, row, scale); });
  fit_levels(metric, row, quantized);
  return quantized;
}

}  // namespace

RowError quantize_row_int4(std::span<const float> row, const InputMetric* metric, std::byte* out,
                           std::byte* scales) {
  QuantizedInt4 quantized{.groups = std::vector<QuantizedGroup>(groups_of(row))};
  const float widest = int4_scale(row);
  if (auto exact = exact_levels(row)) {
    quantized = *std::move(exact);
  } else if (widest > 0 && std::isfinite(1 / (kLeastScale * widest))) {
    quantized = metric != nullptr ? quantize_by(*metric, row, widest) : quantize_apart(row, widest);
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
      const auto level = static_cast<float>(levels[static_cast<int32_t>(group.q[i])]);
      const double difference = double{weights[i]} - double{quantized.scale * level};
      result.squared_error += difference * difference;
      result.squared_norm += double{weights[i]} * double{weights[i]};
    }
  }
  return result;
}

}  // namespace faststream::convert
