// Groups of an int4 matrix' rows (support/weight_format.h): which levels they get.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "support/weight_format.h"

namespace faststream::convert {

inline constexpr size_t kInt4Columns = kInt4Group;
inline constexpr int kMostInt4Q = 15;

/// Weights in units of their row's scale. What a row's last group has too many is 0, and has no
/// part in the error.
struct Int4Weights {
  std::array<float, kInt4Columns> weights{};
  std::array<float, kInt4Columns> importance{};  ///< what their squared errors are multiplied with
  size_t count = 0;

  /// Both have the same length, at most kInt4Columns; an empty importance is ones.
  void set(std::span<const float> values, std::span<const float> importance_of, float inverse);
  [[nodiscard]] std::span<const float> present() const { return {weights.data(), count}; }
};

struct Int4Candidate {
  std::byte code{};
  float error = 0;  ///< Σ importance (weight - nearest level)²
};

/// Of codes whose levels hold the group's range, or most of it, those of the least errors, the
/// least first. A wider search gains below one part in a hundred of the squared error.
inline constexpr size_t kInt4Candidates = 4;
std::array<Int4Candidate, kInt4Candidates> best_int4_codes(const Int4Weights& group);

/// The nearest q of each weight.
std::array<float, kInt4Columns> nearest_int4(const Int4Weights& group, const Int4Levels& levels);

/// The scale of a row with which its widest group has levels for all of its range, and none leaves
/// that of a byte.
float int4_scale(std::span<const float> row);

/// Writes group n of a row, where its code and its elements belong.
void store_int4(int64_t n, std::byte code, std::span<const float, kInt4Columns> q, std::byte* row);

}  // namespace faststream::convert
