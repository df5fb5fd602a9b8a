// Texts as they stand in JSON strings.
#pragma once

#include "text/rules/expression.h"

namespace faststream::rules {

/// The inside of JSON strings whose text the graph accepts, in UTF-8: what JSON escapes is escaped,
/// in one way each but for the case of digits, and nothing else. Edges say where a character
/// begins.
Graph json_escaped(const Graph& text);

}  // namespace faststream::rules
