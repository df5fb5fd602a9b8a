#include "engine/beam_params.h"

#include <string>

#include "support/error.h"

namespace faststream {

void validate(const BeamParams& params) {
  if (params.beams == 1) return;  // no search
  if (params.groups < 1 || params.beams % params.groups != 0) {
    throw UsageError(std::to_string(params.beams) + " beams do not make " +
                     std::to_string(params.groups) +
                     " groups of equal size; give a number of groups that divides the beams");
  }
}

}  // namespace faststream
