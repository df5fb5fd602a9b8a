// Texts that are none of some, beside the same from automata.
#include "text/rules/other_texts.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/error.h"
#include "text/rules/dfa.h"
#include "text/rules/json_escapes.h"
#include "text/rules/output_rule.h"
#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

RuleMatcher matcher_of(Graph texts) {
  const Expr expr = graph(std::make_shared<const Graph>(std::move(texts)));
  auto trie = std::make_shared<const TokenTrie>(0, [](int32_t) { return std::string(); });
  return RuleMatcher(std::make_shared<const CompiledRule>(Grammar{{{"text", expr}}}, trie));
}

Graph from_automata(const std::vector<std::string>& texts) {
  WorkBudget budget;
  std::vector<Expr> excluded;
  for (const std::string& text : texts) excluded.push_back(literal(text));
  const Dfa any(repeat(any_character(), 0, kUnbounded), budget);
  return any.without(Dfa(choice(std::move(excluded)), budget), budget).json_graph(budget);
}

// All that up to `most` pieces more make of a text that both allow.
void expect_same(const RuleMatcher& a, const RuleMatcher& b, const std::string& text, int most) {
  ASSERT_EQ(a.complete(), b.complete()) << text;
  if (most == 0) return;
  for (const char* piece :
       {"a",   "b",    "é",       "è",       "\xC3",    "\xA8",    "漢",  "漣",      "😀",  "\\\"",
        "\\n", "\\\\", "\\u0001", "\\u001f", "\\u001F", "\\u000a", "\\/", "\\u0061", "\n", "\""}) {
    RuleMatcher a_after = a;
    RuleMatcher b_after = b;
    const bool is_allowed = a_after.accept(piece);
    ASSERT_EQ(is_allowed, b_after.accept(piece)) << text << " then " << piece;
    if (is_allowed) expect_same(a_after, b_after, text + piece, most - 1);
  }
}

TEST(OtherTexts, AreThoseOfAutomata) {
  const std::vector<std::vector<std::string>> all = {
      {"a"},
      {""},
      {"a", "ab", "abb", "b"},
      {"", "é", "éa", "è", "漢", "漢漣", "😀"},
      {"\n", "a\"b", "\\", "\x01", "\x1F", "a\na"},
      {"aé", "aè", "aé", "a漢"},
  };
  for (const std::vector<std::string>& texts : all) {
    WorkBudget budget;
    expect_same(matcher_of(json_escaped(other_texts(texts, budget))),
                matcher_of(from_automata(texts)), "", 3);
  }
}

TEST(OtherTexts, AreBounded) {
  WorkBudget budget;
  EXPECT_THROW(other_texts({std::string(60000, 'a')}, budget), Error);
  std::vector<std::string> many;
  for (int i = 0; i < 1000; ++i) many.push_back(std::to_string(i) + std::string(20, 'b'));
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) other_texts(many, budget);
      },
      Error);
}

}  // namespace
}  // namespace faststream::rules
