// Grammars as llama.cpp has them: grammars/README.md there.
#include <utility>

#include "support/printable.h"
#include "text/rules/character_classes.h"
#include "text/rules/grammar_reader.h"
#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : reader_(text), names_("root") {}

  Grammar parse() {
    reader_.skip_blanks(true, "#");
    while (!reader_.at_end()) {
      const std::string name = reader_.take_name();
      if (name.empty()) reader_.fail("has no rule's name where one begins");
      reader_.skip_blanks(false, "#");
      if (!reader_.take("::=")) reader_.fail("has no ::= after the name " + in_quotes(name));
      const int32_t rule = names_.number(name);
      if (names_.is_defined(rule)) reader_.fail("defines " + in_quotes(name) + " again");
      names_.define(rule, parse_choice(0));
      if (!reader_.at_end() && !begins_rule()) reader_.fail("has something that is no expression");
    }
    return names_.take();
  }

 private:
  // A name and ::= behind it.
  bool begins_rule() {
    const size_t start = reader_.at();
    const bool has_name = !reader_.take_name().empty();
    reader_.skip_blanks(false, "#");
    const bool begins = has_name && reader_.sees("::=");
    reader_.go_back(start);
    return begins;
  }

  Expr parse_choice(int depth) {
    if (depth > kMaxGroupDepth) reader_.fail("has too many groups within each other");
    std::vector<Expr> parts = {parse_sequence(depth)};
    while (reader_.take("|")) parts.push_back(parse_sequence(depth));
    return choice(std::move(parts));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> parts;
    for (;;) {
      reader_.skip_blanks(true, "#");
      if (reader_.at_end() || reader_.sees("|") || reader_.sees(")") || begins_rule()) {
        return sequence(std::move(parts));
      }
      Expr atom = parse_atom(depth);
      parts.push_back(parse_quantifiers(std::move(atom)));
    }
  }

  Expr parse_quantifiers(Expr atom) {
    for (;;) {
      reader_.skip_blanks(false, "#");
      if (reader_.take("*")) {
        atom = repeat(std::move(atom), 0, kUnbounded);
      } else if (reader_.take("+")) {
        atom = repeat(std::move(atom), 1, kUnbounded);
      } else if (reader_.take("?")) {
        atom = optional(std::move(atom));
      } else if (reader_.take("{")) {
        const int32_t first = reader_.take_count();
        int32_t most = first;
        if (reader_.take(",")) {
          most = reader_.take_count();
          if (most < 0) most = kUnbounded;
        }
        if (first < 0 || !reader_.take("}")) reader_.fail("has a { without numbers and its }");
        if (most != kUnbounded && most < first) reader_.fail("has bounds in no order");
        atom = repeat(std::move(atom), first, most);
      } else {
        return atom;
      }
    }
  }

  Expr parse_atom(int depth) {
    if (reader_.take("\"")) return parse_text();
    if (reader_.take("[")) return parse_class();
    if (reader_.take(".")) return any_character();
    if (reader_.take("(")) {
      Expr inner = parse_choice(depth + 1);
      if (!reader_.take(")")) reader_.fail("has a ( without its )");
      return inner;
    }
    if (reader_.sees("<") || reader_.sees("!<")) {
      reader_.fail("names a token, which is not supported; a rule sees bytes");
    }
    const std::string name = reader_.take_name();
    if (name.empty()) reader_.fail("has something that is no expression");
    return call(names_.number(name));
  }

  uint32_t take_one() {
    if (reader_.take("\\")) return reader_.take_escape();
    return reader_.take_character();
  }

  Expr parse_text() {
    std::vector<Expr> parts;
    while (!reader_.take("\"")) {
      if (reader_.at_end() || reader_.sees("\n")) reader_.fail("has a text without its end");
      const uint32_t code = take_one();
      parts.push_back(classes_.of({{code, code}}));
    }
    return sequence(std::move(parts));
  }

  Expr parse_class() {
    const bool is_negated = reader_.take("^");
    std::vector<CodeRange> ranges;
    while (!reader_.take("]")) {
      if (reader_.at_end() || reader_.sees("\n")) reader_.fail("has a [ without its ]");
      const uint32_t first = take_one();
      uint32_t last = first;
      if (reader_.sees("-") && !reader_.sees("-]")) {
        reader_.take("-");
        last = take_one();
      }
      if (last < first) reader_.fail("has a range of characters in no order");
      ranges.push_back({first, last});
    }
    return classes_.of(is_negated ? complement(std::move(ranges)) : std::move(ranges));
  }

  GrammarReader reader_;
  RuleNames names_;
  WorkBudget budget_;
  CharacterClasses classes_{budget_};
};

}  // namespace

Grammar parse_gbnf(std::string_view text) { return GbnfParser(text).parse(); }

}  // namespace faststream::rules
