// How the next token is chosen.
#pragma once

#include <cstdint>

namespace faststream {

/// Sampling parameters of one sequence. The same parameters, prompt and model give the same text,
/// whatever else runs beside it.
struct SamplingParams {
  float temperature = 0.8F;  ///< 0 is greedy; at most 100
  int32_t top_k = 40;        ///< keep the k most likely tokens; 0 keeps all
  float top_p = 0.95F;       ///< keep the most likely tokens that together reach p; 1 keeps all
  uint64_t seed = 0;
};

/// Throws UsageError when a member is out of range.
void validate(const SamplingParams& params);

}  // namespace faststream
