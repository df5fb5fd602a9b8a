// How many prompt tokens a step takes, so that no step is long.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace faststream {

/// Between two steps the engine looks for what has come and what was cancelled, and sequences that
/// run get a token in each: so none should last longer than kSeconds, or kBatchSeconds where nobody
/// waits for a part of the work: the fewer steps, the fewer times all weights are read. Where one
/// does so without prompts, these may double it: fewer tokens a step would cost more, since each
/// step reads all weights.
///
/// The budget follows what steps take, as a straight line through the last one and the shortest, or
/// the last one without prompts. It is a power of two, so that small differences of time do not
/// change it.
class StepBudget {
 public:
  static constexpr double kSeconds = 0.2;
  static constexpr double kBatchSeconds = 1;
  static constexpr int32_t kLeast = 16;

  /// `first` tokens until a step was measured; at most `most`.
  StepBudget(int32_t first, int32_t most, double seconds = kSeconds)
      : seconds_(seconds), most_(most), tokens_(std::min(first, most)) {}

  /// Prompt tokens that the next step may take.
  [[nodiscard]] int32_t tokens() const { return tokens_; }

  /// A step of so many tokens of prompts, or in all (the same in each call), has taken so long.
  void measured(int32_t tokens, double seconds) {
    if (tokens == 0 || shortest_seconds_ == 0 || seconds < shortest_seconds_) {
      shortest_tokens_ = tokens;
      shortest_seconds_ = seconds;
    }
    const double limit = std::max(seconds_, 2 * shortest_seconds_);
    const bool is_long = seconds > limit;
    if (!is_long && tokens < tokens_ / 2) return;  // says nothing about steps that are full

    // Whatever a step costs, one of k times its tokens costs no more than k times that.
    double fit = tokens * std::max(2.0, seconds_ / std::max(seconds, 1e-6));
    if (tokens > shortest_tokens_ && seconds > shortest_seconds_) {
      const double of_token = (seconds - shortest_seconds_) / (tokens - shortest_tokens_);
      fit = shortest_tokens_ + (limit - shortest_seconds_) / of_token;
    }
    const auto power = std::bit_floor(static_cast<uint32_t>(std::min(fit, 1e9)));
    tokens_ = std::clamp(static_cast<int32_t>(power), std::min(kLeast, most_), most_);
  }

 private:
  double seconds_;
  int32_t most_;
  int32_t tokens_;
  int32_t shortest_tokens_ = 0;
  double shortest_seconds_ = 0;  // 0 before the first
};

}  // namespace faststream
