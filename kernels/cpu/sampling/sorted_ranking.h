// How the plain reference ranks a row of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/sampling/sample.h"

namespace faststream {

/// What sample_row() asks of a ranking, by sorting all tokens.
class SortedRanking {
 public:
  class Candidates;

  void read(std::span<const float> logits) {
    keys_.clear();
    bool has_nan = false;
    for (size_t i = 0; i < logits.size(); ++i) {
      has_nan |= std::isnan(logits[i]);
      keys_.push_back(token_key(logits[i], static_cast<int32_t>(i)));
    }
    std::sort(keys_.begin(), keys_.end(), std::greater<>());
    check_logits(has_nan, key_logit(keys_[0]));
  }
  [[nodiscard]] double read_sum(std::span<const float> logits) {
    read(logits);
    const double largest = key_logit(keys_[0]);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    return largest + std::log(sum);
  }
  [[nodiscard]] uint64_t best() const { return keys_[0]; }
  [[nodiscard]] uint64_t total(const Softmax& softmax) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) sum += softmax.mass(key_logit(key));
    return sum;
  }
  [[nodiscard]] std::span<const uint64_t> top(int32_t n) const {
    return std::span(keys_).first(std::min(keys_.size(), static_cast<size_t>(n)));
  }
  [[nodiscard]] Candidates candidates(const Softmax& softmax, int32_t kept) const;

 private:
  std::vector<uint64_t> keys_;  // descending
};

class SortedRanking::Candidates {
 public:
  struct Found {
    uint64_t key;
    uint64_t cumulative;
  };

  Candidates(const Softmax& softmax, std::span<const uint64_t> keys)
      : softmax_(softmax), keys_(keys) {}

  [[nodiscard]] uint64_t total() const { return mass_within(kMassOctaves); }
  [[nodiscard]] uint64_t mass_within(float octaves) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) {
      if (softmax_.octaves(key_logit(key)) <= octaves) sum += softmax_.mass(key_logit(key));
    }
    return sum;
  }
  [[nodiscard]] Found find(uint64_t mass) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) {
      sum += softmax_.mass(key_logit(key));
      if (sum >= mass) return {key, sum};
    }
    throw std::logic_error("sample: the candidates' mass is less than was asked for");
  }

 private:
  Softmax softmax_;
  std::span<const uint64_t> keys_;
};

inline SortedRanking::Candidates SortedRanking::candidates(const Softmax& softmax,
                                                           int32_t kept) const {
  return {softmax, top(kept)};
}

}  // namespace faststream
