// How much memory operations take for what they hold only for themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace faststream {

/// An operation takes at most so much; where it needs more, it does its work in pieces.
inline constexpr size_t kMaxScratchBytes = size_t{256} << 20;

/// Rows of a piece when each takes so many bytes: as many as fit, at least `grain`, a multiple of
/// it unless all `rows` fit.
constexpr int64_t rows_of_piece(int64_t rows, size_t bytes_per_row, int64_t grain) {
  const auto fit = static_cast<int64_t>(kMaxScratchBytes / bytes_per_row) / grain * grain;
  return std::min(rows, std::max(fit, grain));
}

}  // namespace faststream
