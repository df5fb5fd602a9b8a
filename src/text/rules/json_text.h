// JSON's texts as expressions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/rules/dfa.h"
#include "text/rules/expression.h"

namespace faststream::rules {

/// What may stand behind {, [, comma and colon and before } and ]: nothing, a space, or up to two
/// line ends and up to 20 blanks. A bound, since small models would write blanks without end.
Expr json_space();
/// One character of a string, as it is or escaped.
Expr json_character();
/// A string whose text the automaton accepts.
Expr json_string(const Dfa& text, WorkBudget& budget);
/// A string whose text is none of these. Throws Error as other_texts() does.
Expr other_json_string(std::vector<std::string> texts, WorkBudget& budget);
/// This string.
Expr json_string(const std::string& text);
/// This value; members in this order, numbers without a point where they need none.
Expr json_value(const nlohmann::ordered_json& value, int depth = 0);
/// `open`, the parts with commas between them, and `close`.
Expr json_list(char open, Expr parts, char close);
/// A comma and what may follow it.
Expr json_comma();

}  // namespace faststream::rules
