// A rotation of a row's columns in blocks, after which no column is much larger than the others: so
// that eight bits lose little of a row with outliers (QuaRot, arXiv:2404.00456). Where a weight's
// rows and what they are multiplied with are rotated alike, products stay what they are.
//
// From a row's beginning on there are blocks of 256 columns as long as they fit, then of 64, 16, 4
// and 1. In a block of n columns a column changes its sign where hadamard_negates() says so, and
// then the block is multiplied by the Walsh-Hadamard matrix of n rows in natural order, H[i][j] =
// (-1)^(number of common bits of i and j) / sqrt(n).
//
// The signs are those of a bent function, so that a block of equal numbers, of whose sum a
// Hadamard matrix alone would make one outlier, becomes one of equal magnitudes.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace faststream {

inline constexpr int64_t kLargestHadamardBlock = 256;

/// Columns of the next block where so many are left, at least one.
constexpr int64_t hadamard_block(int64_t left) {
  int64_t block = kLargestHadamardBlock;
  while (block > left) block /= 4;
  return block;
}

/// Whether column i of a block changes its sign.
constexpr bool hadamard_negates(int64_t i) {
  const auto both = [i](int a, int b) { return (i >> a & i >> b & 1) != 0; };
  return both(0, 1) != (both(2, 5) != (both(3, 4) != both(6, 7)));
}

/// Rotates a row in place, or `width` columns of a matrix that has no others: elements that are
/// `width` apart are beside each other.
template <typename T>
void hadamard(std::span<T> row, size_t width = 1) {
  while (!row.empty()) {
    const int64_t n = hadamard_block(static_cast<int64_t>(row.size() / width));
    const auto block = row.first(static_cast<size_t>(n) * width);
    const T factor = 1 / std::sqrt(static_cast<T>(n));
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] *= hadamard_negates(static_cast<int64_t>(i / width)) ? -factor : factor;
    }
    for (size_t distance = width; distance < block.size(); distance *= 2) {
      for (size_t first = 0; first < block.size(); first += 2 * distance) {
        for (size_t i = first; i < first + distance; ++i) {
          const T a = block[i];
          const T b = block[i + distance];
          block[i] = a + b;
          block[i + distance] = a - b;
        }
      }
    }
    row = row.subspan(block.size());
  }
}

}  // namespace faststream
