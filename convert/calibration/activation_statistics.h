// What matrices are multiplied with, measured over a text: second moments of their inputs. They
// say what rounding a weight costs the product: its error times its input, squared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "models/tensor_plan.h"
#include "support/hadamard.h"

namespace faststream::convert {

/// Of the rows x of inputs that a matrix, or a part of it with inputs of its own, was multiplied
/// with: its columns in the model file's order, before any rotation and without balancing (who
/// rotates or multiplies columns does the opposite to the moments).
struct InputMoments {
  double count = 0;                 ///< rows that were seen; of an expert: tokens that used it
  std::vector<float> mean_squares;  ///< [columns] means of x_c², finite and not negative
  /// Means of x_i x_j for columns of the same block, where they were measured, else empty: of each
  /// block of `gram_columns` columns in turn a symmetric matrix [n, n], the last one of the columns
  /// that are left. No block cuts one of the rotation's (support/hadamard.h).
  std::vector<float> gram = {};
  int64_t gram_columns = 0;

  /// The matrix [n, n] of the block that begins at column `first`, a multiple of gram_columns.
  [[nodiscard]] std::span<const float> gram_block(int64_t first) const {
    const int64_t n = std::min(gram_columns, static_cast<int64_t>(mean_squares.size()) - first);
    return std::span(gram).subspan(static_cast<size_t>(first * gram_columns),
                                   static_cast<size_t>(n * n));
  }
};

/// Columns of a block of products of columns, least: whole blocks of the rotation.
inline constexpr int64_t kLeastGramColumns = kLargestHadamardBlock;

/// The moments of a model's inputs, by tensor. An output matrix is TensorKind::output here, also
/// where it is the embedding table.
class ActivationStatistics {
 public:
  /// How many equal parts of a matrix' rows have inputs of their own: experts, or heads of
  /// Backend::head_linear().
  [[nodiscard]] static int64_t parts_of(const TensorPlan& plan) {
    return std::max<int64_t>({1, plan.experts, plan.blocks});
  }

  /// What part `part` of a matrix' rows was multiplied with; null where that is not known.
  [[nodiscard]] const InputMoments* find(const TensorId& id, int64_t part = 0) const;
  void set(const TensorId& id, int64_t part, InputMoments moments);
  /// By tensor and part.
  [[nodiscard]] const std::map<std::pair<TensorId, int64_t>, InputMoments>& all() const {
    return moments_;
  }

 private:
  std::map<std::pair<TensorId, int64_t>, InputMoments> moments_;
};

/// The matrices of a description whose inputs are worth measuring: those in int4, which alone are
/// rounded by what they are multiplied with, of what a model computes with.
std::vector<TensorPlan> calibrated_matrices(const ModelConfig& config);

}  // namespace faststream::convert
