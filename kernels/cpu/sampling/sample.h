// The steps of drawing a token from a row of logits, which both CPU backends share. How they rank
// the row differs: the reference sorts it, the fast one does not.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cpu/sampling/philox.h"
#include "kernels/sampling.h"

namespace faststream {

/// Throws Error where nothing can be drawn from a row with this largest logit.
inline void check_logits(bool has_nan, float largest) {
  if (has_nan || largest == std::numeric_limits<float>::infinity()) {
    check_draw(DrawFault::not_a_number);
  }
  if (std::isinf(largest)) check_draw(DrawFault::nothing_left);
}

inline void edit_logit(const LogitEdit& edit, float& logit) {
  const float scaled = logit > 0 ? logit / edit.repetition : logit * edit.repetition;
  logit = scaled + edit.bias;
}

/// Makes the logits of tokens that are not in the mask minus infinity.
inline void apply_mask(std::span<const uint32_t> mask, std::span<float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t first = 0; first < logits.size(); first += 32) {
    const std::span<float> of_word =
        logits.subspan(first, std::min<size_t>(32, logits.size() - first));
    uint32_t left = ~mask[first / 32];  // most words have none of a text's tokens, or all
    if (left == ~0U) {
      std::ranges::fill(of_word, kNever);
      continue;
    }
    for (; left != 0; left &= left - 1) {
      const auto t = static_cast<size_t>(std::countr_zero(left));
      if (t < of_word.size()) of_word[t] = kNever;
    }
  }
}

/// Applies the edits and returns the logits that they changed, in their order.
inline std::vector<float> apply_edits(std::span<const LogitEdit> edits, std::span<float> logits) {
  std::vector<float> unedited;
  unedited.reserve(edits.size());
  for (const LogitEdit& edit : edits) {
    float& logit = logits[static_cast<size_t>(edit.token)];
    unedited.push_back(logit);
    edit_logit(edit, logit);
  }
  return unedited;
}

/// Adds the candidates of a row of logits that `ranking` has read, as Backend::sample specifies;
/// the logits become edited log-probabilities where there are edits.
template <class Ranking>
void rank_row(std::span<float> logits, const SamplingRow& rule, const LogSoftmax& model,
              Ranking& ranking, SampledToken& result) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const bool is_edited = !rule.edits.empty();
  if (is_edited) {
    for (float& logit : logits) logit = model(logit);
    apply_edits(rule.edits, logits);
    if (std::all_of(logits.begin(), logits.end(), [](float l) { return l == kNever; })) {
      return;
    }
    if (rule.renormalizes) {
      result.renormalization = LogSoftmax(ranking.read_sum(logits))(0);
    } else {
      ranking.read(logits);
    }
  }
  for (const uint64_t key : ranking.top(rule.n_candidates)) {
    const float value = key_logit(key);
    if (value == kNever) break;
    result.candidates.push_back(
        {key_id(key), is_edited ? value + result.renormalization : model(value)});
  }
}

/// Draws a token from `logits` [vocab], which the rule's mask and edits change, or ranks them, as
/// Backend::sample specifies. A logit of minus infinity has probability zero. Throws Error when a
/// logit is NaN or plus infinity, or all are minus infinity; std::logic_error when the rule does
/// not fit the vocabulary.
///
/// Ranking has
/// read(logits): ranks a row, which must stay as it is; calls check_logits();
/// read_sum(logits): the same; returns the logarithm of the sum of all e^logit;
/// best(): the key of the likeliest token;
/// total(softmax): the mass of all tokens;
/// top(n): the keys of the n likeliest (or the vocabulary), descending;
/// candidates(softmax, kept): those of draw_among(), the `kept` likeliest that have a mass.
template <class Ranking>
SampledToken sample_row(std::span<float> logits, const SamplingRow& rule, Ranking& ranking) {
  const auto vocab = static_cast<int64_t>(logits.size());
  require_rule(rule, vocab);
  SampledToken result;
  std::optional<LogSoftmax> model;
  if (rule.n_candidates > 0) {
    model.emplace(ranking.read_sum(logits));
  } else if (rule.n_logprobs >= 0) {
    ranking.read(logits);
    const float largest = key_logit(ranking.best());
    model.emplace(largest, ranking.total({largest, softmax_scale(1)}));
  }
  if (model) {
    for (const uint64_t key : ranking.top(std::max(rule.n_logprobs, 0))) {
      result.top.push_back({key_id(key), (*model)(key_logit(key))});
    }
  }
  if (rule.n_candidates > 0) {
    rank_row(logits, rule, *model, ranking, result);
    return result;
  }
  if (!rule.mask.empty()) apply_mask(rule.mask, logits);
  const std::vector<float> unedited = apply_edits(rule.edits, logits);
  if (!model || !unedited.empty() || !rule.mask.empty()) ranking.read(logits);

  const uint64_t best = ranking.best();
  const DrawRule draw = draw_rule(rule, vocab);
  if (draw.scale == 0) {
    result.token = key_id(best);
  } else {
    auto candidates = ranking.candidates({key_logit(best), draw.scale}, draw.kept);
    result.token =
        draw_among(candidates, draw, sampling_uniform(rule.seed, rule.sequence, rule.position));
  }
  if (model) {
    float logit = logits[static_cast<size_t>(result.token)];
    for (size_t i = 0; i < unedited.size(); ++i) {
      if (rule.edits[i].token == result.token) logit = unedited[i];
    }
    result.logprob = (*model)(logit);
  }
  return result;
}

}  // namespace faststream
