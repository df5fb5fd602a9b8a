// Which columns of a feed-forward's last matrix are divided by what its middle is multiplied with.
//
// In y = D (act(G x) ⊙ (U x)) column i of D may be divided by a factor that row i of U is multiplied
// with. Rounding to eight bits after a rotation costs in proportion to |D|² |m|², m the middle, for
// a rotation gives all columns of a block their mean square. That is least where columns share it
// alike, |D_i| / f_i ~ |m_i| f_i (arXiv:2211.10438 balances so by what it has measured of m). Here
// |m_i| is taken to be as |G_i| |U_i|, which takes no measurement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/config.h"

namespace faststream {

/// A gate_up matrix of a gated feed-forward and the down matrix after it, both of eight bits, rotated
/// and without biases, whose factors can be any.
struct Balanced {
  const TensorPlan* gate_up = nullptr;
  const TensorPlan* down = nullptr;
  [[nodiscard]] int64_t experts() const { return std::max<int64_t>(1, down->experts); }
  [[nodiscard]] int64_t middle() const { return down->shape[1]; }
};

/// The pair that begins with plans[n], if one does.
std::optional<Balanced> balanced_pair(const ModelConfig& config, std::span<const TensorPlan> plans,
                                      size_t n);

/// The factors [experts, middle] of one expert after the other, of geometric mean 1. gate_up
/// [experts, 2, middle]: the sums of squares of G's and U's rows; down [experts, middle]: those of
/// D's columns.
std::vector<float> balancing_factors(int64_t middle, std::span<const double> gate_up,
                                     std::span<const double> down);

}  // namespace faststream
