// Functors of the attention kernels: which of a sequence's cached tokens a query of one head sees,
// and what becomes of its scores. Scores are exponents of two: q · k times the softmax scale times
// log2(e).
#pragma once

#include <climits>
#include <type_traits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

inline constexpr float kLog2E = 1.44269504088896340736F;

/// Scores as they are, of all tokens up to the query's own, or of all.
template <bool kBidirectional>
class PlainRule {
 public:
  static constexpr bool kPlain = true;

  __device__ PlainRule(const AttentionArguments& /*a*/, int /*head*/, int n_tokens)
      : n_tokens_(n_tokens) {}
  [[nodiscard]] __device__ int first_seen(int /*position*/) const { return 0; }
  [[nodiscard]] __device__ bool sees(int position, int token) const {
    return kBidirectional ? token < n_tokens_ : token <= position;
  }
  [[nodiscard]] __device__ float vary(float score, int /*position*/, int /*token*/) const {
    return score;
  }

 private:
  int n_tokens_;
};

/// Scores as they are, of the last tokens up to the query's own.
class WindowRule {
 public:
  static constexpr bool kPlain = true;

  __device__ WindowRule(const AttentionArguments& a, int /*head*/, int /*n_tokens*/)
      : window_(a.rule.window) {}
  [[nodiscard]] __device__ int first_seen(int position) const {
    return max(0, position - window_ + 1);
  }
  [[nodiscard]] __device__ bool sees(int position, int token) const {
    return token <= position && position - token < window_;
  }
  [[nodiscard]] __device__ float vary(float score, int /*position*/, int /*token*/) const {
    return score;
  }

 private:
  int window_;
};

/// Scores as they are, for a query that is the last token, with or without a window.
class LastRule {
 public:
  static constexpr bool kPlain = false;

  __device__ LastRule(const AttentionArguments& a, int /*head*/, int /*n_tokens*/)
      : window_(a.rule.window == 0 ? INT_MAX : a.rule.window) {}
  [[nodiscard]] __device__ int first_seen(int position) const {
    return max(0, position - (window_ - 1));
  }
  [[nodiscard]] __device__ float vary(float score, int /*position*/, int /*token*/) const {
    return score;
  }

 private:
  int window_;
};

/// Scores with a window, soft cap, slopes or bias.
class VariedRule {
 public:
  static constexpr bool kPlain = false;

  __device__ VariedRule(const AttentionArguments& a, int head, int n_tokens)
      : n_tokens_(n_tokens),
        behind_(a.rule.window == 0 ? kAnyDistance : a.rule.window),
        in_blocks_(a.rule.window_in_blocks),
        ahead_(a.rule.bidirectional ? behind_ : 1),
        cap_(a.rule.soft_cap * kLog2E),
        slope_(a.rule.slopes != nullptr ? a.rule.slopes[head] * kLog2E : 0.0F),
        reach_(a.rule.bias_reach),
        bias_(a.rule.bias != nullptr
                  ? a.rule.bias + static_cast<int64_t>(head) * (2 * reach_ + 1) + reach_
                  : nullptr) {}

  /// Of the query at `position`, the first token that it sees.
  [[nodiscard]] __device__ int first_seen(int position) const {
    return in_blocks_ ? position - position % behind_ : max(0, position - behind_ + 1);
  }
  [[nodiscard]] __device__ bool sees(int position, int token) const {
    if (in_blocks_ && token < first_seen(position)) return false;
    return token < n_tokens_ && position - token < behind_ && token - position < ahead_;
  }
  [[nodiscard]] __device__ float vary(float score, int position, int token) const {
    // tanh(x) = 1 - 2 / (1 + exp(2 x)), to 1e-7: the fast instruction has three digits.
    if (cap_ > 0) score = cap_ - 2 * cap_ / (1.0F + exp2f(score / cap_ * (2 * kLog2E)));
    if (bias_ != nullptr) score += bias_[min(max(token - position, -reach_), reach_)] * kLog2E;
    return score - slope_ * fabsf(static_cast<float>(token - position));
  }

 private:
  // Also from positions below zero, which queries of a shorter source have.
  static constexpr int kAnyDistance = INT_MAX / 2;

  int n_tokens_;
  int behind_;  // distances below this are seen
  bool in_blocks_;
  int ahead_;    // likewise of tokens after the query
  float cap_;    // 0: none
  float slope_;  // of a position
  int reach_;
  const float* bias_;  // of distance 0; null: none
};

/// The same of scores to which RelativeScores are added first, of steps that hold whole texts: a
/// text's first token is row first_row of the step.
class RelativeRule : public VariedRule {
 public:
  __device__ RelativeRule(const AttentionArguments& a, const RelativeScores& relative, int head,
                          int n_tokens, int64_t first_row)
      : VariedRule(a, head, n_tokens),
        relative_(relative),
        scale_(a.scale_log2),
        head_(head),
        n_heads_(a.n_heads),
        last_(n_tokens - 1),
        first_row_(first_row) {}

  [[nodiscard]] __device__ float vary(float score, int position, int token) const {
    const int reach = relative_.reach;
    const int vector = relative_.vectors[reach + min(max(token - position, -reach), reach)];
    // A tile may have queries behind the text's last one.
    const float sum = product(relative_.of_queries, min(position, last_), vector) +
                      product(relative_.of_keys, token, vector);
    return VariedRule::vary(score + scale_ * sum, position, token);
  }

 private:
  // Of the text's token `row`.
  [[nodiscard]] __device__ float product(const Matrix& products, int row, int vector) const {
    if (products.data == nullptr) return 0;
    const int64_t column = head_ * (products.cols / n_heads_) + vector;
    return load_element(products.data, products.dtype,
                        (first_row_ + row) * products.stride + column);
  }

  RelativeScores relative_;
  float scale_;
  int head_;
  int n_heads_;
  int last_;
  int64_t first_row_;
};

/// The sum of a softmax's weights 2^(score - maximum), with the head's sink.
inline __device__ float with_sink(const AttentionArguments& a, int head, float maximum,
                                  float weight) {
  if (a.rule.sinks == nullptr) return weight;
  return weight + exp2f(a.rule.sinks[head] * kLog2E - maximum);
}

/// Whether scores remain as they are.
inline bool is_unvaried(const AttentionRule& rule) {
  return rule.soft_cap == 0 && rule.slopes == nullptr && rule.bias == nullptr;
}
/// And all tokens up to the query's are seen, or all.
inline bool is_plain(const AttentionRule& rule) { return rule.window == 0 && is_unvaried(rule); }

/// Calls f.operator()<Rule>() with the functor that the rule needs.
template <typename F>
void with_rule(const AttentionArguments& a, const F& f) {
  if (!is_plain(a.rule)) {
    const bool is_window = is_unvaried(a.rule) && !a.rule.bidirectional && !a.rule.window_in_blocks;
    is_window ? f.template operator()<WindowRule>() : f.template operator()<VariedRule>();
  } else if (a.rule.bidirectional) {
    f.template operator()<PlainRule<true>>();
  } else {
    f.template operator()<PlainRule<false>>();
  }
}

/// The same for kernels of a text's tiles, which rule_of() gives their functor, with what
/// relative_scores() gives beside the arguments.
template <typename F>
void with_rule_of_tiles(const AttentionArguments& a, const F& f) {
  if (a.rule.relative != nullptr) {
    f.template operator()<RelativeRule>();
  } else {
    with_rule(a, f);
  }
}
inline RelativeScores relative_scores(const AttentionArguments& a) {
  return a.rule.relative != nullptr ? *a.rule.relative : RelativeScores{};
}
template <typename Rule>
__device__ Rule rule_of(const AttentionArguments& a, const RelativeScores& relative,
                        const QueryTile& tile) {
  if constexpr (std::is_same_v<Rule, RelativeRule>) {
    return Rule(a, relative, tile.head, tile.n_tokens, tile.first_query - tile.first_position);
  } else {
    return Rule(a, tile.head, tile.n_tokens);
  }
}

/// The same for kernels whose query is the last token, so that it sees all that are cached.
template <typename F>
void with_rule_of_last(const AttentionArguments& a, const F& f) {
  if (is_plain(a.rule)) {
    f.template operator()<PlainRule<false>>();
  } else {
    f.template operator()<VariedRule>();
  }
}

}  // namespace faststream
