// Which columns of a matrix are divided by what its input is multiplied with.
//
// Column i of a matrix W may be divided by a factor that element i of its input x is multiplied
// with. Rounding both to eight bits after a rotation costs in proportion to |W|² |x|², for a
// rotation gives all columns of a block their mean square. That is least where columns share it
// alike, |W_i| / f_i ~ |x_i| f_i (arXiv:2211.10438 balances so by what it has measured of x). What
// |x_i| is likely to be is told here from weights alone:
//
//   the middle of a feed-forward, act(G y) ⊙ (U y): |G_i| |U_i|, and rows of U take the factors;
//   attention's sums of values, V y: |V_i|, and rows of V take the factors;
//   what a norm gives: |W_i|^(-1/2), as inputs are larger where columns are smaller, and the norm's
//   weights take the factors. Of several products that read it each row counts alike, or one with
//   large columns would cost the others theirs. What else was tried is in docs/performance.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream::convert {

/// A matrix of eight bits, rotated, and what gives its input, whose factors can be any.
struct Balanced {
  const TensorPlan* matrix = nullptr;
  const TensorPlan* gate_up = nullptr;  ///< of a gated feed-forward without biases; or
  const TensorPlan* values = nullptr;   ///< with other rows before; or
  const TensorPlan* norm = nullptr;
  const TensorPlan* bias = nullptr;  ///< of values or norm; may be null
  [[nodiscard]] int64_t experts() const { return std::max<int64_t>(1, matrix->experts); }
  [[nodiscard]] int64_t inputs() const { return matrix->shape[1]; }
};

/// The matrix whose input plans[n] gives, if its columns can be balanced.
std::optional<Balanced> balanced_matrix(const ModelConfig& config,
                                        std::span<const TensorPlan> plans, size_t n);

/// The factors [experts, inputs], for each expert of geometric mean 1. gate_up [experts, 2,
/// inputs]: the sums of squares of G's and U's rows; matrix [experts, inputs]: those of its
/// columns.
std::vector<float> middle_factors(int64_t inputs, std::span<const double> gate_up,
                                  std::span<const double> matrix);
/// The factors [values], of geometric mean 1. values: the sums of squares of V's rows; matrix
/// [queries]: of its columns, of which those of several heads of so many columns in turn may have
/// the same values.
std::vector<float> value_factors(int64_t head_dim, std::span<const double> values,
                                 std::span<const double> matrix);
/// Those of value_factors() for each of so many columns.
std::vector<float> factors_of_queries(int64_t head_dim, std::span<const float> of_values,
                                      size_t queries);
/// The factors [inputs] of geometric mean 1. matrix [inputs]: as above, of rows divided by their
/// norms.
std::vector<float> norm_factors(std::span<const double> matrix);

}  // namespace faststream::convert
