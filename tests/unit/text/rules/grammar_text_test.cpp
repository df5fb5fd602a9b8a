#include "text/rules/grammar_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/error.h"
#include "text/rules/output_rule.h"

namespace faststream::rules {
namespace {

bool is_of(std::string_view grammar, std::string_view text) {
  RuleMatcher matcher(std::make_shared<const CompiledRule>(
      parse_grammar(grammar),
      std::make_shared<const TokenTrie>(0, [](int32_t) { return std::string(); })));
  return (text.empty() || matcher.accept(text)) && matcher.complete();
}

TEST(Gbnf, ReadsWhatLlamaCppWrites) {
  constexpr std::string_view kChess = R"g(# two moves
root   ::= "1. " move " " move "\n" (
             [1-9] [0-9]? ". " move " " move "\n"
           )*
move   ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
)g";
  EXPECT_TRUE(is_of(kChess, "1. e4 e5\n2. Nf3 O-O-O+\n"));
  EXPECT_FALSE(is_of(kChess, "1. e4 e9\n"));
  constexpr std::string_view kList =
      "root ::= item{2,3} [^\\n\\]]{1,} .\nitem ::= \"- \" \"\\x41\\u00e9\\\"\"";
  EXPECT_TRUE(is_of(kList, "- Aé\"- Aé\"xyz\n"));
  EXPECT_FALSE(is_of(kList, "- Aé\"xyz"));
}

TEST(Gbnf, RecursesToTheLeftInOneRule) {
  constexpr std::string_view kSum = "root ::= root \"+\" [0-9] | [0-9]";
  EXPECT_TRUE(is_of(kSum, "1+2+3"));
  EXPECT_FALSE(is_of(kSum, "1+"));
}

TEST(Lark, ReadsRulesAndTerminals) {
  constexpr std::string_view kSums = R"g(
// sums
start: sum
?sum: product
    | sum "+" product  -> add
product: atom ("*" atom)*
atom: NUMBER | "(" sum ")" | NAME~1..2
NUMBER: /[0-9]+/ ("." /[0-9]+/)?
NAME: "a".."c" | "let"i
%ignore /[ \t]+/
)g";
  EXPECT_TRUE(is_of(kSums, "1 + 2.5*(a + bLeT)"));
  EXPECT_TRUE(is_of(kSums, "1"));
  EXPECT_FALSE(is_of(kSums, "1 +"));
  EXPECT_FALSE(is_of(kSums, "1. 5"));
}

TEST(GrammarText, CountsClasses) {
  // A class that is everywhere is made once; different ones cost what they have of ranges.
  std::string same = "root ::= ";
  for (int i = 0; i < 20000; ++i) same += "[^a-z]";
  EXPECT_NO_THROW(static_cast<void>(parse_grammar(same)));
  const auto code = [](int n) {
    std::string digits = "0000";
    for (size_t at = digits.size(); n > 0; n /= 16) {
      digits[--at] = "0123456789abcdef"[n % 16];
    }
    return "\\u" + digits;
  };
  std::string many = "root ::= ";
  for (int i = 0; i < 400; ++i) {
    many += "[";
    for (int c = 0; c < 300; ++c) many += code(0x4E00 + i + 2 * c);
    many += "]";
  }
  try {
    static_cast<void>(parse_grammar(many));
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("too much work"), std::string::npos) << error.what();
  }
}

TEST(GrammarText, TellsTheLine) {
  const std::string name(1000, 'a');
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"root ::= \"a", "line 1"},
      {"root ::= a\n\nb ::= \"b\"", "no rule \"a\""},
      {"item ::= \"a\"", "no rule \"root\""},
      {"root ::= a\na ::= b\nb ::= a \"x\" | \"y\"", "left-recursive"},
      {"root ::= " + name + "\n" + name + " ::= b\nb ::= " + name + " \"x\" | \"y\"",
       "aaa...\" is"},
      {"root ::= \"x\"\nroot ::= \"y\"", "line 2"},
      {"root ::= [z-a]", "no order"},
      {"root ::= \"a\"{3,1}", "no order"},
      {"root ::= ((\"a\")", "without its )"},
      {"root ::= <think>", "token"},
      {"root ::= \"a\" root", "unsatisfiable"},
      {"start: %json {}", "not supported"},
      {"start: /a/i", "flag"},
      {"start: A\nA: b\nb: \"x\"", "terminal"},
      {"%import common.WS\nstart: WS", "not supported"},
      {"\xFF", "UTF-8"},
      {"nonsense", "line 1"},
      {std::string("root ::= ") + std::string(1000, '('), "too many groups"}};
  for (const auto& [grammar, reason] : refused) {
    try {
      static_cast<void>(is_of(grammar, "a"));
      ADD_FAILURE() << grammar;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace faststream::rules
