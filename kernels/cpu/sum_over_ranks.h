// Sums over ranks, and what they gather, of what is in the host's memory.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/rank_link.h"
#include "backend/tensor.h"
#include "support/dtype.h"

namespace faststream {

/// See Backend::join() and sum_over_ranks(). Small sums go to all ranks, each of which adds them
/// up; of larger ones each rank adds up a piece, which then goes to all. In both cases terms are
/// added in the order of ranks in float32, from terms of the type `sums`, and the result is rounded
/// to it: what a row's sums are does not depend on how many other rows there are.
class RankSums {
 public:
  /// The link must outlive it.
  RankSums(RankLink& link, DType sums) : link_(link), type_(sums) {}

  void add_up(const Matrix& share, OutputMode output, const Matrix& out);
  /// The same of n numbers in a row: x = the sum of all ranks'.
  void add_up(std::span<float> x);
  /// The same of the rows of a matrix, which may have gaps between them.
  void add_up(const Matrix& m);
  /// See Backend::gather_columns().
  void gather_columns(const Matrix& m, int64_t each);

 private:
  template <typename T>
  void add_up_terms(std::span<float> x);

  RankLink& link_;
  DType type_;
  std::vector<std::byte> terms_;
  std::vector<float> sums_;
  std::vector<float> rows_;
};

}  // namespace faststream
