// What an error of a row's weights costs the product: e H eᵀ, H = E[x xᵀ] the second moments of
// what the row is multiplied with.
//
// Columns are rounded one after the other. What rounding column i got wrong, the columns after it
// make up for as far as their inputs go with its own: the least of e H eᵀ over all that they could
// be. With Uᵀ U = H⁻¹, U upper triangular, column j > i changes by -e_i U_ij / U_ii, and the error
// that nothing makes up for is (e_i / U_ii)² (GPTQ, arXiv:2210.17323). H is known in blocks on its
// diagonal, of columns that are rotated together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "convert/calibration/activation_statistics.h"

namespace faststream::convert {

class InputMetric {
 public:
  /// Of what stands in the file as the row w R / factors: `factors` [columns] is what columns of
  /// the weights were multiplied with, or empty; `head_dim`, if not 0, of heads of columns that are
  /// rotated each by itself, and then `rotated` says that rows are (support/hadamard.h). `each` is
  /// called with the number of blocks and what to do with each: they can be done at the same time.
  using ForEach = std::function<void(int64_t count, const std::function<void(int64_t)>& body)>;
  InputMetric(const InputMoments& moments, std::span<const float> factors, int64_t head_dim,
              bool rotated, const ForEach& each);

  /// Whether blocks of the moments cut none of the heads, so that there can be a metric.
  [[nodiscard]] static bool can_rotate(const InputMoments& moments, int64_t head_dim);

  /// A block: columns [first, first + size) of a row.
  struct Block {
    int64_t first = 0;
    int64_t size = 0;
    std::vector<float> factor;      ///< [size, size]: U, as above; zeros below the diagonal
    std::vector<float> importance;  ///< [size]: 1 / U_ii²
    std::vector<float> moments;     ///< [size, size]: H, whose inverse Uᵀ U is
  };
  [[nodiscard]] std::span<const Block> blocks() const { return blocks_; }

 private:
  std::vector<Block> blocks_;
};

}  // namespace faststream::convert
