#include "engine/sampling.h"

#include "support/error.h"

namespace faststream {

void validate(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100)) {
    throw UsageError("the temperature must be from 0 (greedy) to 100");
  }
  if (params.top_k < 0) throw UsageError("top-k must be 0 (all tokens) or more");
  if (!(params.top_p >= 0 && params.top_p <= 1)) throw UsageError("top-p must be from 0 to 1");
}

}  // namespace faststream
