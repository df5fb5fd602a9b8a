// Drawing a token from a row of logits; both CPU backends share it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace faststream {

/// A token that may be drawn: its key and mass as in kernels/sampling.h.
struct Candidate {
  uint64_t key = 0;
  uint64_t mass = 0;
};

/// Working memory of sample_row() that may be reused between calls.
struct SampleScratch {
  std::vector<Candidate> candidates;
  std::vector<float> unedited;
};

/// Draws a token from `logits` [vocab], which the rule's edits change, as Backend::sample
/// specifies. A logit of minus infinity has probability zero. Throws Error when a logit is NaN or
/// plus infinity, or all are minus infinity; std::logic_error when the rule does not fit the
/// vocabulary.
SampledToken sample_row(std::span<float> logits, const SamplingRow& rule, SampleScratch& scratch);

}  // namespace faststream
