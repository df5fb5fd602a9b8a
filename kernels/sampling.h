// The arithmetic of a draw, which every device shares: CPU and GPU pick the same token because they
// compute the same integers.
//
// The probability of a token, relative to the likeliest, is its mass: an integer, 2^40 for the
// likeliest. Masses of up to kMaxVocab tokens add up in 64 bits exactly, so that no sum depends on
// the order of its terms, and atomic additions may be used. A logit and its id make one key, whose
// descending order is the order of Backend::sample; no two keys of a row are equal.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>

#include "backend/backend.h"
#include "kernels/mass_polynomial.h"
#include "support/bit_mask.h"
#include "support/error.h"

namespace faststream {

inline constexpr int64_t kMaxVocab = 1 << 23;

/// Throws std::logic_error, which is a defect of the caller, unless the rule fits the vocabulary.
inline void require_rule(const SamplingRow& rule, int64_t vocab) {
  const bool edits_fit = std::all_of(rule.edits.begin(), rule.edits.end(), [&](const LogitEdit& e) {
    return e.token >= 0 && e.token < vocab;
  });
  const bool mask_fits =
      rule.mask.empty() || (rule.n_candidates == 0 && rule.mask.size() == mask_words(vocab));
  if (edits_fit && mask_fits && rule.n_logprobs <= kMaxLogprobs &&
      rule.n_candidates <= kMaxCandidates && vocab > 0 && vocab <= kMaxVocab) {
    return;
  }
  throw std::logic_error("sample: a rule does not fit the vocabulary");
}

/// Whether a rule lets a token be drawn.
inline bool may_draw(std::span<const uint32_t> mask, size_t token) {
  return mask.empty() || has_bit(mask, token);
}

/// Larger for a larger logit, the same for equal ones (0 and -0 are).
constexpr uint32_t logit_order(float logit) {
  const uint32_t bits = logit == 0 ? 0U : std::bit_cast<uint32_t>(logit);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// Larger for a larger logit, and among equal logits for a smaller id.
constexpr uint64_t token_key(float logit, int32_t id) {
  return uint64_t{logit_order(logit)} << 32 | (0xffffffffU - static_cast<uint32_t>(id));
}
constexpr int32_t key_id(uint64_t key) {
  return static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(key));
}
/// The logit of an order; NaN for orders that no logit has.
constexpr float order_logit(uint32_t order) {
  return std::bit_cast<float>((order & 0x80000000U) != 0 ? order & 0x7fffffffU : ~order);
}
constexpr float key_logit(uint64_t key) { return order_logit(static_cast<uint32_t>(key >> 32)); }

/// Turns the logits of a row into masses.
struct Softmax {
  float largest = 0;  ///< logit
  float scale = 0;    ///< octaves for a difference of one between logits

  /// By how many octaves a logit is below the largest; never falls as logits fall.
  [[nodiscard]] constexpr float octaves(float logit) const { return (largest - logit) * scale; }

  /// Whether mass(logit) is not zero.
  [[nodiscard]] constexpr bool has_mass(float logit) const { return octaves(logit) < kMassOctaves; }

  /// 2^(40 - octaves), rounded down, with a relative error below 2^-24 before that.
  [[nodiscard]] constexpr uint64_t mass(float logit) const {
    if (!has_mass(logit)) return 0;
    const auto fixed = static_cast<uint32_t>(octaves(logit) * 0x1p26F);
    const uint32_t whole = fixed >> 26;
    const Times times{fixed << 6};
    return uint64_t{mass_polynomial<uint32_t>(times)} << 9 >> whole;
  }

 private:
  struct Times {
    uint32_t fraction;  // in units of 2^-32
    constexpr uint32_t operator()(uint32_t a) const {
      return static_cast<uint32_t>(uint64_t{a} * fraction >> 32);
    }
  };
};

/// log2(e): octaves in a factor of e.
inline constexpr double kOctavesPerUnit = 1.4426950408889634;

/// Softmax::scale for a temperature above 0; temperature 1 is the model's own distribution.
inline float softmax_scale(float temperature) {
  return static_cast<float>(
      std::min(kOctavesPerUnit / temperature, double{std::numeric_limits<float>::max()}));
}

/// How a row is drawn from: the part of SamplingRow that devices compute with.
struct DrawRule {
  float scale = 0;   ///< softmax_scale, or 0: greedy
  int32_t kept = 0;  ///< by top-k: at least 1, at most the vocabulary
  float top_p = 1;
  float min_p_octaves = 0;  ///< keep what is at most so far below the likeliest
};

inline DrawRule draw_rule(const SamplingRow& rule, int64_t vocab) {
  const bool all = rule.top_k <= 0 || rule.top_k > vocab;
  return {.scale = rule.temperature > 0 ? softmax_scale(rule.temperature) : 0,
          .kept = all ? static_cast<int32_t>(vocab) : rule.top_k,
          .top_p = rule.top_p,
          .min_p_octaves = -std::log2(rule.min_p)};  // infinite for 0
}

/// The model's own distribution: logarithms of probabilities.
class LogSoftmax {
 public:
  /// total: mass of the whole vocabulary at temperature 1.
  LogSoftmax(float largest, uint64_t total)
      : log_total_(largest + std::log(static_cast<double>(total) * 0x1p-40)) {}

  /// log_sum: logarithm of the sum of all e^logit.
  explicit LogSoftmax(double log_sum) : log_total_(log_sum) {}

  float operator()(float logit) const { return static_cast<float>(logit - log_total_); }

 private:
  double log_total_;
};

/// The mass that the nucleus must reach: top_p of `total`, but at least the likeliest token.
constexpr uint64_t nucleus_mass(float top_p, uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  auto rounded_up = static_cast<uint64_t>(wanted);
  if (static_cast<double>(rounded_up) < wanted) ++rounded_up;
  return rounded_up < 1 ? 1 : rounded_up > total ? total : rounded_up;
}

/// The token drawn is the first whose cumulative mass reaches this, which is at most `total`: the
/// smallest integer above uniform · total, exactly. uniform: a multiple of 2^-24 in [0, 1).
constexpr uint64_t drawn_mass(float uniform, uint64_t total) {
  const auto numerator = static_cast<uint64_t>(uniform * 0x1p24F);
  const uint64_t high = total >> 24;
  const uint64_t low = total & 0xffffff;
  return numerator * high + (numerator * low >> 24) + 1;
}

/// Draws from candidates in descending order of their keys, all that top-k leaves:
/// total() is their mass;
/// mass_within(octaves) is the mass of those at most so far below the likeliest (or more than
///   total(), where top-k decides);
/// find(mass) gives the first whose cumulative mass is at least `mass`: its .key and the
///   .cumulative mass there.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // device code's candidates have device functions only
#endif
template <typename Candidates>
constexpr int32_t draw_among(Candidates& candidates, const DrawRule& rule, float uniform) {
  uint64_t total = candidates.total();
  if (rule.top_p < 1) total = candidates.find(nucleus_mass(rule.top_p, total)).cumulative;
  // Both rules keep a prefix of the order: the shorter one has the smaller mass.
  if (rule.min_p_octaves < kMassOctaves) {
    const uint64_t within = candidates.mass_within(rule.min_p_octaves);
    total = within < total ? within : total;
  }
  return key_id(candidates.find(drawn_mass(uniform, total)).key);
}

/// Why nothing can be drawn from a row.
enum class DrawFault : int32_t { none, not_a_number, nothing_left };

/// Throws Error unless there is no fault.
inline void check_draw(DrawFault fault) {
  if (fault == DrawFault::none) return;
  throw Error(
      fault == DrawFault::not_a_number
          ? "the model produced logits that are not numbers (NaN or infinity): its weights are "
            "damaged or overflow; check the model file with --verify or convert it again with "
            "--dtype f32"
          : "no token is left to draw: all logits are minus infinity; forbid fewer tokens by "
            "biases, or check the model file with --verify");
}

}  // namespace faststream
