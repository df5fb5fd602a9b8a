// Which graphs' characters can be counted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text/rules/expression.h"

namespace faststream::rules {

/// For each state of a graph, of which all lead to an end, how many characters must follow at
/// least. Nothing where it is not told by these numbers alone whether a text of at least `least`
/// characters and some bound above can be completed: where a way must end before, or, if one may,
/// where some number of characters between the fewest and the most is not possible from a state.
std::optional<std::vector<int32_t>> characters_left(const Graph& graph, int32_t least);

}  // namespace faststream::rules
