// What making a rule may cost.
#pragma once

#include <cstddef>

#include "support/error.h"

namespace faststream::rules {

/// Counts the steps that a rule's classes, patterns, alternatives and combinations of these take,
/// so that a hostile one ends within about two seconds. A step is what looks at one number of a
/// table.
class WorkBudget {
 public:
  /// Throws Error once there were too many.
  void spend(size_t steps) {
    if (steps > left_) {
      throw Error(
          "the rule's patterns, or combinations of them or of alternatives, take too much work; "
          "make "
          "them fewer or smaller");
    }
    left_ -= steps;
  }

 private:
  size_t left_ = size_t{20} << 20U;
};

}  // namespace faststream::rules
