// Grammars in Lark, as llguidance reads them, less what depends on how texts are split into
// terminals: a rule is the texts of its terminals one after the other, with what is ignored
// between them.
#include <cctype>
#include <set>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/grammar_reader.h"
#include "text/rules/json_schema.h"
#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

class LarkParser {
 public:
  explicit LarkParser(std::string_view text) : reader_(text), names_("start") {}

  Grammar parse() {
    find_ignored();
    skip_lines();
    while (!reader_.at_end()) {
      if (reader_.take("%ignore")) {
        static_cast<void>(parse_choice(0, true));  // found before
      } else if (reader_.sees("%")) {
        reader_.fail("has a % statement that is not supported; %ignore is");
      } else {
        parse_rule();
      }
      skip_lines();
    }
    return names_.take();
  }

 private:
  static bool is_terminal(const std::string& name) {
    const size_t letter = name.find_first_not_of('_');
    return letter != std::string::npos &&
           std::isupper(static_cast<unsigned char>(name[letter])) != 0;
  }

  void skip_lines() {
    for (;;) {
      reader_.skip_blanks(true, "//");
      if (!reader_.sees("#")) return;
      reader_.skip_blanks(true, "#");
    }
  }

  // What %ignore says, wherever it stands, is known before rules are read.
  void find_ignored() {
    const size_t start = reader_.at();
    std::vector<Expr> ignored;
    while (!reader_.at_end()) {
      skip_lines();
      if (reader_.take("%ignore")) {
        ignored.push_back(parse_choice(0, true));
      } else {
        while (!reader_.at_end() && !reader_.take("\n"))
          static_cast<void>(reader_.take_character());
      }
    }
    reader_.go_back(start);
    if (ignored.empty()) return;
    ignored_ = call(names_.number("%ignore"));
    names_.define(ignored_->rule, repeat(choice(std::move(ignored)), 0, kUnbounded));
  }

  void parse_rule() {
    reader_.take("?");
    reader_.take("!");
    const std::string name = reader_.take_name();
    if (name.empty()) reader_.fail("has no rule's name where one begins");
    if (reader_.sees("[") || reader_.sees("{")) {
      reader_.fail("has attributes or parameters of a rule, which are not supported");
    }
    if (reader_.take(".")) static_cast<void>(reader_.take_count());  // a priority
    reader_.skip_blanks(false, "//");
    if (!reader_.take(":")) reader_.fail("has no : after the name " + in_quotes(name));
    const int32_t rule = names_.number(name);
    if (names_.is_defined(rule)) reader_.fail("defines " + in_quotes(name) + " again");
    names_.define(rule, parse_choice(0, is_terminal(name)));
  }

  Expr parse_choice(int depth, bool in_terminal) {
    if (depth > kMaxGroupDepth) reader_.fail("has too many groups within each other");
    std::vector<Expr> parts = {parse_sequence(depth, in_terminal)};
    while (take_or()) parts.push_back(parse_sequence(depth, in_terminal));
    return choice(std::move(parts));
  }

  // A |, which may begin a line.
  bool take_or() {
    const size_t start = reader_.at();
    skip_lines();
    if (reader_.take("|")) return true;
    reader_.go_back(start);
    return false;
  }

  Expr parse_sequence(int depth, bool in_terminal) {
    std::vector<Expr> parts;
    for (;;) {
      reader_.skip_blanks(depth > 0, "//");
      if (reader_.take("->")) {  // a name of the alternative
        reader_.skip_blanks(false, "//");
        static_cast<void>(reader_.take_name());
        continue;
      }
      const char next = reader_.peek();
      if (reader_.at_end() || next == '\n' || next == '|' || next == ')' || next == ']') {
        return sequence(std::move(parts));
      }
      Expr atom = parse_atom(depth, in_terminal);
      parts.push_back(parse_quantifier(std::move(atom)));
    }
  }

  Expr parse_quantifier(Expr atom) {
    if (reader_.take("*")) return repeat(std::move(atom), 0, kUnbounded);
    if (reader_.take("+")) return repeat(std::move(atom), 1, kUnbounded);
    if (reader_.take("?")) return optional(std::move(atom));
    int32_t least = -1;
    int32_t most = -1;
    if (reader_.take("~")) {
      reader_.skip_blanks(false, "//");
      least = most = reader_.take_count();
      if (reader_.take("..")) most = reader_.take_count();
      if (least < 0 || most < least) reader_.fail("has ~ without numbers in order");
    } else if (reader_.take("{")) {
      least = most = reader_.take_count();
      if (reader_.take(",")) most = reader_.take_count();
      if (least < 0) least = 0;
      if (!reader_.take("}") || (most >= 0 && most < least)) {
        reader_.fail("has a { without numbers in order and its }");
      }
      if (most < 0) most = kUnbounded;
    } else {
      return atom;
    }
    return repeat(std::move(atom), least, most);
  }

  // In a rule what is ignored may stand before each terminal, and at the text's end.
  Expr terminal(Expr expr, bool in_terminal) {
    if (in_terminal || !ignored_) return expr;
    return sequence({std::move(expr), ignored_});
  }

  Expr parse_atom(int depth, bool in_terminal) {
    if (reader_.take("(")) {
      Expr inner = parse_choice(depth + 1, in_terminal);
      reader_.skip_blanks(true, "//");
      if (!reader_.take(")")) reader_.fail("has a ( without its )");
      return inner;
    }
    if (reader_.take("[")) {
      Expr inner = parse_choice(depth + 1, in_terminal);
      reader_.skip_blanks(true, "//");
      if (!reader_.take("]")) reader_.fail("has a [ without its ]");
      return optional(std::move(inner));
    }
    if (reader_.sees("\"")) return parse_text(in_terminal);
    if (reader_.take("/")) {
      const std::string pattern = reader_.take_until('/');
      if (std::isalpha(static_cast<unsigned char>(reader_.peek())) != 0) {
        reader_.fail("has a flag of a regular expression, which is not supported");
      }
      try {
        return terminal(parse_regex(pattern, classes_), in_terminal);
      } catch (const Error& error) {
        reader_.fail("has an error: " + std::string(error.what()));
      }
    }
    if (reader_.sees("%") || reader_.sees("<") || reader_.sees("@") || reader_.sees("&") ||
        reader_.sees("~")) {
      reader_.fail("has " + std::string(1, reader_.peek()) + ", which is not supported");
    }
    const std::string name = reader_.take_name();
    if (name.empty()) reader_.fail("has something that is no expression");
    if (in_terminal && !is_terminal(name)) {
      reader_.fail("has the rule " + in_quotes(name) +
                   " in a terminal; only terminals may be there");
    }
    Expr called = call(names_.number(name));
    return is_terminal(name) ? terminal(std::move(called), in_terminal) : called;
  }

  uint32_t take_one() {
    if (reader_.take("\\")) return reader_.take_escape();
    return reader_.take_character();
  }

  Expr parse_text(bool in_terminal) {
    const auto take_text = [this] {
      std::vector<uint32_t> text;
      reader_.take("\"");
      while (!reader_.take("\"")) {
        if (reader_.at_end() || reader_.sees("\n")) reader_.fail("has a text without its end");
        text.push_back(take_one());
      }
      return text;
    };
    const std::vector<uint32_t> text = take_text();
    if (reader_.take("..")) {
      const std::vector<uint32_t> last = take_text();
      if (text.size() != 1 || last.size() != 1 || last.front() < text.front()) {
        reader_.fail("has a range of characters that is none");
      }
      return terminal(classes_.of({{text.front(), last.front()}}), in_terminal);
    }
    const bool any_case = reader_.take("i");
    std::vector<Expr> parts;
    for (const uint32_t code : text) {
      std::vector<CodeRange> one = {{code, code}};
      if (any_case && code < 0x80 && std::isalpha(static_cast<int>(code)) != 0) {
        one.push_back({code ^ 0x20U, code ^ 0x20U});
      }
      parts.push_back(classes_.of(std::move(one)));
    }
    return terminal(sequence(std::move(parts)), in_terminal);
  }

  GrammarReader reader_;
  WorkBudget budget_;
  CharacterClasses classes_{budget_};
  RuleNames names_;
  Expr ignored_;
};

}  // namespace

Grammar parse_lark(std::string_view text) { return LarkParser(text).parse(); }

}  // namespace faststream::rules
