// Sampling as its definition reads, in double precision, by sorting everything: what draws and
// log-probabilities are compared with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/sampling/philox.h"

namespace faststream {

inline bool operator==(const LogProbability& a, const LogProbability& b) {
  return a.token == b.token && a.value == b.value;
}
inline bool operator==(const SampledToken& a, const SampledToken& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top == b.top;
}
inline std::ostream& operator<<(std::ostream& out, const SampledToken& s) {
  out << "token " << s.token << " of log-probability " << s.logprob << ", likeliest";
  for (const LogProbability& top : s.top) out << " " << top.token << ": " << top.value;
  return out;
}

/// Logits after edits, in the float32 arithmetic that the contract's formula means.
inline std::vector<float> exact_edits(std::vector<float> logits, std::span<const LogitEdit> edits) {
  for (const LogitEdit& edit : edits) {
    float& logit = logits[static_cast<size_t>(edit.token)];
    logit = (logit > 0 ? logit / edit.repetition : logit * edit.repetition) + edit.bias;
  }
  return logits;
}

/// Ids by descending logit, then ascending id.
inline std::vector<int32_t> exact_order(const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return order;
}

/// The tokens that a rule keeps, in order, and their probabilities relative to the likeliest.
struct ExactCandidates {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double total = 0;
  double slack = 0;  ///< of `total`, where rounding decides whether the last candidates are kept

  /// `order` is exact_order(logits). The rule's edits are not applied, its temperature is not 0.
  ExactCandidates(const std::vector<float>& logits, const std::vector<int32_t>& order,
                  const SamplingRow& rule) {
    const auto logit = [&](size_t rank) {
      return double{logits[static_cast<size_t>(order[rank])]};
    };
    size_t kept = order.size();
    if (rule.top_k > 0) kept = std::min(kept, static_cast<size_t>(rule.top_k));
    std::vector<double> sums;
    for (size_t rank = 0; rank < kept; ++rank) {
      weights.push_back(rank == 0 ? 1 : std::exp((logit(rank) - logit(0)) / rule.temperature));
      sums.push_back(weights.back() + (rank == 0 ? 0 : sums.back()));
    }
    const auto count_kept = [&](double rounding) {
      size_t count = kept;
      if (rule.top_p < 1) {
        const double wanted = (rule.top_p + rounding) * sums.back();
        const auto last = std::lower_bound(sums.begin(), sums.end(), wanted);
        count = std::min(count, static_cast<size_t>(last - sums.begin()) + 1);
      }
      const double least = rule.min_p == 1 ? 1 : rule.min_p * (1 - 10 * rounding);
      while (count > 1 && weights[count - 1] < least) --count;
      return count;
    };
    const size_t most = count_kept(kRounding);
    total = sums[count_kept(0) - 1];
    slack = sums[most - 1] - sums[count_kept(-kRounding) - 1];
    weights.resize(most);
    ids.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most));
  }

  /// Fails unless `token` is where the rule's random number points, up to rounding.
  void expect_drawn(int32_t token, const SamplingRow& rule) const {
    const double wanted = total * double{sampling_uniform(rule.seed, rule.sequence, rule.position)};
    const double tolerance = kRounding * total + slack;
    double cumulative = 0;
    int32_t nearest = ids.back();
    for (size_t rank = 0; rank < ids.size() && cumulative <= wanted + tolerance; ++rank) {
      if (cumulative <= wanted) nearest = ids[rank];
      cumulative += weights[rank];
      if (ids[rank] == token && cumulative >= wanted - tolerance) return;
    }
    ADD_FAILURE() << "token " << token << " was drawn instead of " << nearest << " of "
                  << ids.size() << " candidates; temperature " << rule.temperature << ", top_k "
                  << rule.top_k << ", top_p " << rule.top_p << ", min_p " << rule.min_p
                  << ", position " << rule.position;
  }

 private:
  static constexpr double kRounding = 1e-6;  // of float32 probabilities, relative to their sum
};

/// Log softmax.
inline std::vector<double> exact_logprobs(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

}  // namespace faststream
