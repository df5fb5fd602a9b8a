#include "text/rules/grammar_text.h"

#include <algorithm>
#include <string>

#include "support/error.h"
#include "support/utf8.h"
#include "text/rules/grammar_reader.h"

namespace faststream::rules {

Grammar parse_grammar(std::string_view text) {
  if (text.size() > kMaxGrammarBytes) {
    throw Error("the grammar has more than " + std::to_string(kMaxGrammarBytes) +
                " bytes; make it smaller");
  }
  if (!is_valid_utf8(text)) throw Error("the grammar is not valid UTF-8");
  const bool is_gbnf = text.find("::=") != std::string_view::npos;
  return is_gbnf ? parse_gbnf(text) : parse_lark(text);
}

}  // namespace faststream::rules
