// Which experts a token uses, as Router has it: plain arithmetic in double, which the reference and
// the fast CPU backend share. It is next to nothing beside the experts' products.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace faststream {

struct ChosenExpert {
  int32_t expert = 0;
  float weight = 0;
};

/// Writes router.used experts of a token with these logits [n_experts], the best first; of equal
/// ones the smaller number first. Throws std::logic_error when the rule does not fit the number of
/// experts. Logits that are NaN give experts that exist, and weights that are NaN.
void choose_experts(std::span<const float> logits, const Router& router,
                    std::span<ChosenExpert> chosen);

}  // namespace faststream
