// How much memory operations take for what they hold only for themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace faststream {

/// An operation takes at most about so much; where it needs more, it does its work in pieces.
inline constexpr size_t kMaxScratchBytes = size_t{256} << 20;
/// Experts about so much: for another piece all of their weights would be read again.
inline constexpr size_t kMaxExpertsBytes = size_t{1280} << 20;

/// What an operation does at a time, and the memory that this takes.
struct ScratchPiece {
  int64_t rows = 0;
  size_t bytes = 0;
};

/// A piece of `rows` rows that take bytes_per_row each, padded to a multiple of `grain`: as many as
/// fit into `room`, at most `most` (a multiple of grain) and at least `grain`, in multiples of it
/// unless all fit. The bytes include the padding, and room to align three parts.
constexpr ScratchPiece piece_of(int64_t rows, size_t bytes_per_row, int64_t grain,
                                int64_t most = std::numeric_limits<int64_t>::max(),
                                size_t room = kMaxScratchBytes) {
  const auto fit = static_cast<int64_t>(room / bytes_per_row) / grain * grain;
  const int64_t taken = std::min({rows, most, std::max(fit, grain)});
  const int64_t padded = (taken + grain - 1) / grain * grain;
  return {taken, static_cast<size_t>(padded) * bytes_per_row + 3 * 256};
}

}  // namespace faststream
