#include "engine/beam_params.h"

#include <string>

#include "engine/within.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr int32_t kMaxBeams = 128;

}  // namespace

void validate(const BeamParams& params) {
  if (params.beams < 1 || params.beams > kMaxBeams) {
    throw UsageError("beams must be from 1 (no beam search) to " + std::to_string(kMaxBeams));
  }
  if (!within(params.length_penalty, -10, 10)) {
    throw UsageError("the length penalty must be from -10 to 10 (1 is the mean log-probability)");
  }
  if (!within(params.diversity_penalty, 0, 100)) {
    throw UsageError("the diversity penalty must be from 0 to 100");
  }
  if (params.groups < 1 || params.beams % params.groups != 0) {
    throw UsageError(std::to_string(params.beams) + " beams do not make " +
                     std::to_string(params.groups) +
                     " groups of equal size; give a number of groups that divides the beams");
  }
  if (params.diversity_penalty > 0 && params.groups == 1) {
    throw UsageError("a diversity penalty needs groups of beams; give 2 groups or more");
  }
}

}  // namespace faststream
