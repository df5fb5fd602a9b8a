// How a beam search goes.
#pragma once

#include <cstdint>

namespace faststream {

/// When a beam search is over. Once there are as many finished texts as beams:
enum class EarlyStopping {
  no,     ///< when no beam would be better than the worst of them if it ended now
  yes,    ///< at once
  never,  ///< when no beam can become better, however long it grows (as far as that is known)
};

/// A beam search (Transformers' generate(), whose names these are, gives the same texts and
/// scores). A text's score is the sum of its tokens' log-probabilities, penalties and biases
/// included, divided by its number of tokens to the power of length_penalty.
struct BeamParams {
  int32_t beams = 1;         ///< texts that are pursued at once, at most 128; 1: samples, no search
  float length_penalty = 1;  ///< above 0 favours long texts, below 0 short ones; -10 to 10
  EarlyStopping early_stopping = EarlyStopping::no;
  /// Beams are in so many groups of equal size, of which each is kept from the tokens that the
  /// groups before it took in the same step (arXiv:1610.02424).
  int32_t groups = 1;
  float diversity_penalty = 0;  ///< off a token's log-probability for each beam that took it
};

/// Throws UsageError when the beams of a search do not make its groups. The range of each member:
/// engine/request_settings.h.
void validate(const BeamParams& params);

}  // namespace faststream
