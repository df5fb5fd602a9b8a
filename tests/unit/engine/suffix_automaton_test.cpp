#include "engine/suffix_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace faststream {
namespace {

// Whether the last `length` tokens end before, too.
bool occurs_before(const std::vector<int32_t>& text, int32_t length) {
  const auto suffix = text.end() - length;
  return std::search(text.begin(), text.end() - 1, suffix, text.end()) != text.end() - 1;
}

int32_t longest_that_occurs_before(const std::vector<int32_t>& text) {
  int32_t length = 0;
  while (length + 1 < static_cast<int32_t>(text.size()) && occurs_before(text, length + 1)) {
    ++length;
  }
  return length;
}

void expect_matches_of_a_search(const std::vector<int32_t>& tokens) {
  SuffixAutomaton automaton;
  std::vector<int32_t> text;
  for (const int32_t token : tokens) {
    text.push_back(token);
    const SuffixAutomaton::Match match = automaton.append(token);
    ASSERT_EQ(match.length, longest_that_occurs_before(text)) << "of " << text.size() << " tokens";
    if (match.length == 0) continue;
    ASSERT_LT(match.end, automaton.n_tokens());
    ASSERT_GE(match.end, match.length);
    ASSERT_TRUE(
        std::equal(text.end() - match.length, text.end(), text.begin() + match.end - match.length))
        << "of " << text.size() << " tokens, up to " << match.end;
  }
}

TEST(SuffixAutomaton, FindsTheLongestSuffixThatOccurredBefore) {
  std::mt19937 random(3);
  for (const uint32_t n_kinds : {1U, 2U, 3U, 20U}) {
    std::vector<int32_t> tokens;
    while (tokens.size() < 300) tokens.push_back(static_cast<int32_t>(random() % n_kinds));
    expect_matches_of_a_search(tokens);
  }
}

TEST(SuffixAutomaton, FindsRepeatedPassages) {
  std::mt19937 random(4);
  std::vector<int32_t> tokens;
  while (tokens.size() < 500) {
    const size_t n = random() % 20;
    const size_t from = tokens.size() < 40 ? tokens.size() : random() % (tokens.size() - n);
    for (size_t i = 0; i < n && from + i < tokens.size(); ++i) {
      const int32_t repeated = tokens[from + i];
      tokens.push_back(repeated);
    }
    tokens.push_back(static_cast<int32_t>(random() % 50));
  }
  expect_matches_of_a_search(tokens);
}

TEST(SuffixAutomaton, TellsTheOccurrenceThatItToldLast) {
  SuffixAutomaton automaton;
  std::vector<int32_t> ends;
  for (const int32_t token : {7, 1, 7, 2, 7, 3, 7}) {
    const SuffixAutomaton::Match match = automaton.append(token);
    if (match.length > 0) ends.push_back(match.end);
  }
  EXPECT_EQ(ends, (std::vector<int32_t>{1, 3, 5}));
}

}  // namespace
}  // namespace faststream
