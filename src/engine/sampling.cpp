#include "engine/sampling.h"

#include <string>
#include <unordered_set>

#include "engine/within.h"
#include "support/error.h"

namespace faststream {

void validate(std::span<const LogitBias> biases, int64_t vocab) {
  std::unordered_set<int32_t> biased;
  for (const LogitBias& bias : biases) {
    if (bias.token < 0 || bias.token >= vocab) {
      throw UsageError("the logit bias of token " + std::to_string(bias.token) +
                       ": the model's tokens are 0 to " + std::to_string(vocab - 1));
    }
    if (!within(bias.bias, -100, 100)) {
      throw UsageError("the logit bias of token " + std::to_string(bias.token) +
                       " must be from -100 to 100");
    }
    if (!biased.insert(bias.token).second) {
      throw UsageError("token " + std::to_string(bias.token) + " has two logit biases");
    }
  }
}

}  // namespace faststream
