// Regular expressions as ECMA-262 has them (with its flag u), less what is not regular.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "text/rules/character_classes.h"
#include "text/rules/expression.h"

namespace faststream::rules {

/// Regular expressions are no larger.
constexpr size_t kMaxRegexBytes = size_t{1} << 20U;

/// The texts that match a pattern as a whole; or, if `anywhere`, those in which it is found, of
/// which ^ and $ are the ends. Throws Error, naming what and where, for what no pattern is, for
/// lookarounds, back references, word boundaries and flags, and once the budget of the classes is
/// spent.
Expr parse_regex(std::string_view pattern, CharacterClasses& classes, bool anywhere = false);
/// With a budget of its own.
Expr parse_regex(std::string_view pattern);

/// Any text in UTF-8 of one character.
Expr any_character();

/// The code points of a Unicode general category, by one of its names ("Lu", "L", "Letter"). Throws
/// Error when there is none.
std::vector<CodeRange> category_ranges(std::string_view name);

}  // namespace faststream::rules
