// Drawing a token from a row of logits; both CPU backends share it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace faststream {

/// A token and its logit.
struct Candidate {
  float logit = 0;
  int32_t id = 0;
};

/// Draws a token from `logits` [vocab] as Backend::sample specifies. `scratch` is working memory
/// that may be reused between calls. A logit of minus infinity has probability zero. Throws Error
/// when a logit is NaN or none is finite.
int32_t sample_row(std::span<const float> logits, const SamplingRow& rule,
                   std::vector<Candidate>& scratch);

}  // namespace faststream
