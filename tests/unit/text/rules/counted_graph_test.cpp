// Counted characters of patterns beside all texts that there are.
#include "text/rules/counted_graph.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/rules/dfa.h"
#include "text/rules/output_rule.h"
#include "text/rules/regex.h"
#include "text/rules/schema_document.h"

namespace faststream::rules {
namespace {

constexpr int kLongest = 8;
const std::vector<std::string> kCharacters = {"a", "b", "é"};

std::vector<std::string> all_texts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0, n = 0; n < kLongest; ++n) {
    for (const size_t end = texts.size(); i < end; ++i) {
      for (const std::string& one : kCharacters) texts.push_back(texts[i] + one);
    }
  }
  return texts;
}

struct Counted {
  Dfa dfa;
  std::shared_ptr<const Graph> graph;
};
Counted graph_of(const std::string& pattern) {
  WorkBudget budget;
  CharacterClasses classes(budget);
  Dfa dfa(parse_regex(pattern, classes), budget);
  auto graph = std::make_shared<const Graph>(dfa.json_graph(budget));
  return {std::move(dfa), std::move(graph)};
}

RuleMatcher matcher_of(Expr expr) {
  auto trie = std::make_shared<const TokenTrie>(0, [](int32_t) { return std::string(); });
  return RuleMatcher(
      std::make_shared<const CompiledRule>(Grammar{{{"text", std::move(expr)}}}, std::move(trie)));
}

// Whether the rule goes on from a text exactly where a text that it has begins so.
void expect_counts(const std::string& pattern, int32_t least, int32_t most) {
  const Counted counted = graph_of(pattern);
  std::set<std::string> prefixes;
  std::set<std::string> whole;
  for (const std::string& text : all_texts()) {
    const auto n = static_cast<int32_t>(count_characters(text));
    if (n < least || n > most || !counted.dfa.accepts(text)) continue;
    whole.insert(text);
    for (size_t i = 0; i <= text.size(); ++i) prefixes.insert(text.substr(0, i));
  }
  ASSERT_TRUE(characters_left(*counted.graph, least)) << pattern;
  const RuleMatcher start = matcher_of(counted_graph(counted.graph, least, most));
  for (const std::string& text : all_texts()) {
    RuleMatcher matcher = start;
    const bool goes_on = text.empty() || matcher.accept(text);
    EXPECT_EQ(goes_on, prefixes.contains(text)) << pattern << " " << least << " " << text;
    EXPECT_EQ(goes_on && matcher.complete(), whole.contains(text)) << pattern << " " << text;
  }
}

TEST(CountedGraph, GoesOnWhereATextOfTheRightLengthBeginsSo) {
  for (const int32_t least : {0, 1, 3, 5}) {
    for (const int32_t most : {5, 7}) {
      expect_counts("[abé]*", least, most);
      expect_counts("a(b|éé)*", least, most);
      expect_counts("(a|é)+b*", least, most);
    }
  }
  for (const int32_t most : {1, 4, 7}) {
    expect_counts("[ab]*é", 1, most);
    expect_counts("a?(b|éé)*a", 0, most);
  }
  // The numbers of characters have gaps, but none below the fewest.
  expect_counts("a(bbb|é)?(aaaa)?", 1, 5);
  expect_counts("(éab)*", 0, 7);
}

TEST(CountedGraph, SaysWhereNumbersDoNotTell) {
  EXPECT_TRUE(characters_left(*graph_of("(ab)*").graph, 0));
  EXPECT_FALSE(characters_left(*graph_of("(ab)*").graph, 3));
  EXPECT_FALSE(characters_left(*graph_of("a|b{9}").graph, 4));
  EXPECT_EQ(characters_left(*graph_of("aéb*").graph, 2)->front(), 2);
}

}  // namespace
}  // namespace faststream::rules
