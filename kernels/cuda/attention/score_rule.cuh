// Functors of the attention kernels: which cached tokens a query of one head sees, and what becomes
// of its scores. Scores are exponents of two: q · k times the softmax scale times log2(e).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace faststream {

inline constexpr float kLog2E = 1.44269504088896340736F;

/// Scores as they are, of all tokens up to the query's own.
struct PlainRule {
  static constexpr bool kPlain = true;

  __device__ PlainRule(const AttentionArguments& /*a*/, int /*head*/) {}
  [[nodiscard]] __device__ int first_seen(int /*position*/) const { return 0; }
  [[nodiscard]] __device__ bool sees(int position, int token) const { return token <= position; }
  [[nodiscard]] __device__ float vary(float score, int /*position*/, int /*token*/) const {
    return score;
  }
};

/// Scores with a window, soft cap or slopes.
class VariedRule {
 public:
  static constexpr bool kPlain = false;

  __device__ VariedRule(const AttentionArguments& a, int head)
      : window_(a.rule.window),
        cap_(a.rule.soft_cap * kLog2E),
        slope_(a.rule.slopes != nullptr ? a.rule.slopes[head] * kLog2E : 0.0F) {}

  /// Of the query at `position`, the first token that it sees.
  [[nodiscard]] __device__ int first_seen(int position) const {
    return window_ == 0 ? 0 : max(0, position - window_ + 1);
  }
  [[nodiscard]] __device__ bool sees(int position, int token) const {
    return token <= position && (window_ == 0 || position - token < window_);
  }
  [[nodiscard]] __device__ float vary(float score, int position, int token) const {
    // tanh(x) = 1 - 2 / (1 + exp(2 x)), to 1e-7: the fast instruction has three digits.
    if (cap_ > 0) score = cap_ - 2 * cap_ / (1.0F + exp2f(score / cap_ * (2 * kLog2E)));
    return score + slope_ * static_cast<float>(token - position);
  }

 private:
  int window_;
  float cap_;    // 0: none
  float slope_;  // of a position
};

/// The sum of a softmax's weights 2^(score - maximum), with the head's sink.
inline __device__ float with_sink(const AttentionArguments& a, int head, float maximum,
                                  float weight) {
  if (a.rule.sinks == nullptr) return weight;
  return weight + exp2f(a.rule.sinks[head] * kLog2E - maximum);
}

/// Calls f.operator()<Rule>() with the functor that the rule needs.
template <typename F>
void with_rule(const AttentionArguments& a, const F& f) {
  const AttentionRule& rule = a.rule;
  if (rule.window == 0 && rule.soft_cap == 0 && rule.slopes == nullptr) {
    f.template operator()<PlainRule>();
  } else {
    f.template operator()<VariedRule>();
  }
}

}  // namespace faststream
