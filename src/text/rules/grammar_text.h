// Grammars that users write.
#pragma once

#include <string_view>

#include "text/rules/expression.h"

namespace faststream::rules {

/// Grammars are no larger.
constexpr size_t kMaxGrammarBytes = size_t{1} << 20U;

/// A grammar as llama.cpp has them (GBNF: "name ::= ..."), whose rule is `root`; or one in Lark, as
/// far as docs/output-rules.md says, whose rule is `start`. Throws Error, with the line, for what
/// is neither, or is not supported.
Grammar parse_grammar(std::string_view text);

}  // namespace faststream::rules
