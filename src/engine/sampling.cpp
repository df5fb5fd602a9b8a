#include "engine/sampling.h"

#include <cmath>
#include <string>
#include <unordered_set>

#include "engine/within.h"
#include "support/error.h"

namespace faststream {

void validate(const SamplingParams& params, int64_t vocab) {
  if (!within(params.temperature, 0, 100)) {
    throw UsageError("the temperature must be from 0 (greedy) to 100");
  }
  if (params.top_k < 0) throw UsageError("top-k must be 0 (all tokens) or more");
  if (!within(params.top_p, 0, 1)) throw UsageError("top-p must be from 0 to 1");
  if (!within(params.min_p, 0, 1)) throw UsageError("min-p must be from 0 to 1");
  if (!within(params.repetition_penalty, 0.01F, 100)) {
    throw UsageError("the repetition penalty must be from 0.01 to 100 (1 is none)");
  }
  if (!within(params.presence_penalty, -100, 100) || !within(params.frequency_penalty, -100, 100)) {
    throw UsageError("presence and frequency penalties must be from -100 to 100 (0 is none)");
  }
  if (params.no_repeat_ngram < 0) {
    throw UsageError("the size of n-grams that do not repeat must be 0 (they may) or more");
  }
  std::unordered_set<int32_t> biased;
  for (const LogitBias& bias : params.logit_bias) {
    if (bias.token < 0 || bias.token >= vocab) {
      throw UsageError("the logit bias of token " + std::to_string(bias.token) +
                       ": the model's tokens are 0 to " + std::to_string(vocab - 1));
    }
    if (!within(bias.bias, -100, 100)) throw UsageError("a logit bias must be from -100 to 100");
    if (!biased.insert(bias.token).second) {
      throw UsageError("token " + std::to_string(bias.token) + " has two logit biases");
    }
  }
}

}  // namespace faststream
