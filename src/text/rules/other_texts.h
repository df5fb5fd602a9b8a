// All texts but some.
#pragma once

#include <string>
#include <vector>

#include "text/rules/expression.h"
#include "text/rules/work_budget.h"

namespace faststream::rules {

/// The texts in UTF-8 that are none of `texts`, which are valid UTF-8. Throws Error where that
/// needs too many states, or the budget is spent.
Graph other_texts(std::vector<std::string> texts, WorkBudget& budget);

}  // namespace faststream::rules
