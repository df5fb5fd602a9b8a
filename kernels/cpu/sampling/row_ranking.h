// The order of a row of logits, without sorting it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/sampling.h"

namespace faststream {

/// Orders (kernels/sampling.h) from `low` to `high`, both included.
struct Orders {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// The weights of logits, added up in bins of 2^shift orders each, from orders.low on.
struct Histogram {
  Orders orders;
  int shift = 0;
  std::vector<uint64_t> bins;
};

/// What sample_row() asks of a ranking. Memory is kept from row to row.
class RowRanking {
 public:
  class Candidates;

  explicit RowRanking(const Kernels& kernels) : kernels_(kernels) {}

  void read(std::span<const float> logits);
  [[nodiscard]] double read_sum(std::span<const float> logits);
  [[nodiscard]] uint64_t best() const { return key({best_, 0, 0}); }
  [[nodiscard]] uint64_t total(const Softmax& softmax) const;
  [[nodiscard]] std::vector<uint64_t> top(int32_t n);
  [[nodiscard]] Candidates candidates(const Softmax& softmax, int32_t kept);

 private:
  class Weighted;
  /// A place in the order of a row: number `n` (from 0) of the tokens whose logits have `order`.
  struct Place {
    uint32_t order = 0;
    uint64_t n = 0;
    uint64_t cumulative = 0;  ///< weight of all up to there
  };

  [[nodiscard]] uint64_t key(const Place& place) const;
  /// Orders in which the n likeliest tokens are, for n in [1, vocabulary].
  [[nodiscard]] Orders around_largest(int64_t n);
  /// Takes a row whose largest logits of blocks are known.
  void begin(std::span<const float> logits, bool are_numbers);
  /// Those of `logits` with these orders, copied to the front of `to`, which may have held them.
  std::span<float> copy(std::span<const float> logits, Orders orders, std::vector<float>& to) const;

  const Kernels& kernels_;
  std::span<const float> logits_;
  uint32_t best_ = 0;           // order
  std::vector<float> largest_;  // of each block
  std::vector<float> sums_;     // of each block
  std::vector<float> kept_;     // by top-k
  std::vector<float> part_;     // of a bin
  Histogram histogram_;         // of all logits that count
  Histogram part_histogram_;
};

/// Logits with weights: each weighs 1 or, given a softmax, its mass. Uses the ranking's memory, so
/// that there is one of them at a time.
class RowRanking::Weighted {
 public:
  /// All of `logits` that weigh anything have `orders`.
  Weighted(RowRanking& ranking, std::span<const float> logits, Orders orders,
           const std::optional<Softmax>& softmax);

  [[nodiscard]] uint64_t total() const { return total_; }
  /// The first in descending order whose cumulative weight is at least `weight`, in [1, total()].
  [[nodiscard]] Place find(uint64_t weight);
  /// The weight of those of at least this order.
  [[nodiscard]] uint64_t total_from(uint32_t order);

 private:
  void fill(Histogram& histogram, std::span<const float> logits, Orders orders) const;

  RowRanking& ranking_;
  std::span<const float> logits_;
  std::optional<Softmax> softmax_;
  uint64_t total_ = 0;
};

/// The candidates of draw_among().
class RowRanking::Candidates {
 public:
  struct Found {
    uint64_t key;
    uint64_t cumulative;
  };

  Candidates(RowRanking& ranking, std::span<const float> logits, Orders orders,
             const Softmax& softmax)
      : ranking_(ranking),
        orders_(orders),
        softmax_(softmax),
        weighted_(ranking, logits, orders, softmax) {}

  [[nodiscard]] uint64_t total() const { return weighted_.total(); }
  [[nodiscard]] uint64_t mass_within(float octaves);
  [[nodiscard]] Found find(uint64_t mass);

 private:
  RowRanking& ranking_;
  Orders orders_;
  Softmax softmax_;
  Weighted weighted_;
};

}  // namespace faststream
