// Masks of compiled rules beside a matcher that tries everything.
#include "text/rules/output_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/bit_mask.h"
#include "support/error.h"
#include "text/rules/regex.h"
#include "unit/text/rules/slow_matcher.h"

namespace faststream::rules {
namespace {

std::shared_ptr<const TokenTrie> trie_of(const std::vector<std::string>& tokens) {
  return std::make_shared<const TokenTrie>(static_cast<int32_t>(tokens.size()), [&](int32_t token) {
    return tokens[static_cast<size_t>(token)];
  });
}

RuleMatcher matcher_of(const Grammar& grammar, const std::vector<std::string>& tokens) {
  return RuleMatcher(std::make_shared<const CompiledRule>(grammar, trie_of(tokens)));
}

RuleMatcher regex_matcher(std::string_view pattern, const std::vector<std::string>& tokens = {}) {
  return matcher_of({{{"text", parse_regex(pattern)}}}, tokens);
}

bool matches(std::string_view pattern, std::string_view text) {
  RuleMatcher matcher = regex_matcher(pattern);
  return (text.empty() || matcher.accept(text)) && matcher.complete();
}

std::vector<std::string> allowed(const RuleMatcher& matcher,
                                 const std::vector<std::string>& tokens) {
  std::vector<uint32_t> bits(matcher.words());
  matcher.mask(bits);
  std::vector<std::string> found;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (has_bit(bits, t)) found.push_back(tokens[t]);
  }
  return found;
}

// A random expression over a and b, small enough for SlowMatcher. Rules after `first` may be called
// anywhere; earlier ones behind a byte.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::mt19937& random) : random_(random) {}
  Grammar make() {
    Grammar grammar;
    n_rules_ = 1 + below(3);
    for (int r = 0; r < n_rules_; ++r) {
      rule_ = r;
      // A way out for recursion.
      grammar.rules.push_back({"r", choice({expression(3), bytes(ByteSet('a', 'a'))})});
    }
    return grammar;
  }

 private:
  int below(int n) { return std::uniform_int_distribution(0, n - 1)(random_); }
  Expr letter() {
    const auto byte = static_cast<uint8_t>('a' + below(2));
    return bytes(ByteSet(byte, below(3) == 0 ? 'b' : byte));
  }
  Expr expression(int depth) {
    const int kind = depth == 0 ? below(2) : below(7);
    switch (kind) {
      case 0:
        return letter();
      case 1:
        return literal(below(2) == 0 ? "ab" : "b");
      case 2:
        return sequence({expression(depth - 1), expression(depth - 1)});
      case 3:
        return choice({expression(depth - 1), expression(depth - 1)});
      case 4: {
        const int least = below(3);
        return repeat(sequence({letter(), expression(depth - 1)}), least,
                      below(2) == 0 ? kUnbounded : least + 1 + below(3));
      }
      case 5:
        return optional(expression(depth - 1));
      default:
        if (rule_ + 1 < n_rules_) return call(rule_ + 1);
        return sequence({letter(), call(below(n_rules_)), letter()});
    }
  }

  std::mt19937& random_;
  int n_rules_ = 1;
  int rule_ = 0;
};

TEST(OutputRule, AllowsATokenIffSomeContinuationFits) {
  std::mt19937 random(7);
  const std::vector<std::string> tokens = {"a",
                                           "b",
                                           "ab",
                                           "ba",
                                           "aa",
                                           "bb",
                                           "aab",
                                           "abb",
                                           "",
                                           "bab",
                                           "bba",
                                           "aba",
                                           "c",
                                           "abc",
                                           "b",
                                           "aaaabbbb",
                                           std::string(40, 'a')};
  int n_ambiguous = 0;
  for (int round = 0; round < 300; ++round) {
    const Grammar grammar = RandomGrammar(random).make();
    RuleMatcher matcher = matcher_of(grammar, tokens);
    std::string text;
    for (int step = 0; step < 6; ++step) try {
        ASSERT_EQ(matcher.complete(), SlowMatcher(grammar, text).is_whole()) << text;
        std::vector<std::string> expected;
        for (const std::string& token : tokens) {
          if (!token.empty() && SlowMatcher(grammar, text + token).is_beginning()) {
            expected.push_back(token);
          }
        }
        ASSERT_EQ(allowed(matcher, tokens), expected) << "round " << round << ", after " << text;
        ASSERT_EQ(matcher.goes_on(), SlowMatcher(grammar, text + "a").is_beginning() ||
                                         SlowMatcher(grammar, text + "b").is_beginning());
        if (expected.empty()) break;
        const std::string& chosen = expected[random() % expected.size()];
        ASSERT_TRUE(matcher.accept(chosen));
        text += chosen;
      } catch (const Error&) {  // too ambiguous
        ++n_ambiguous;
        break;
      }
  }
  EXPECT_LT(n_ambiguous, 30);
}

TEST(OutputRule, CountsLongRepetitionsWithoutStatesForEach) {
  const std::vector<std::string> tokens = {
      "x", "xx", std::string(31, 'x'), std::string(50, 'x'), "y", "xy", std::string(30, 'x') + "y"};
  const std::string pattern = "(ab|x|é){100,1000}y";
  const Grammar grammar = {{{"text", parse_regex(pattern)}}};
  std::vector<size_t> counts(1001);
  std::iota(counts.begin(), counts.end(), 0);
  std::mt19937 random(5);
  std::ranges::shuffle(counts, random);
  // Of one rule, so that what is known of a count is used for others in any order.
  const auto rule = std::make_shared<const CompiledRule>(grammar, trie_of(tokens));
  for (const size_t n : counts) {
    RuleMatcher matcher(rule);
    if (n > 0) {
      ASSERT_TRUE(matcher.accept(std::string(n, 'x')));
    }
    std::vector<std::string> expected;
    for (const std::string& token : tokens) {
      const size_t xs = n + token.size() - (token.back() == 'y' ? 1 : 0);
      if (xs <= 1000 && (token.back() != 'y' || xs >= 100)) expected.push_back(token);
    }
    EXPECT_EQ(allowed(matcher, tokens), expected) << n;
  }
}

TEST(OutputRule, NestsCounters) {
  const std::string pattern = "((a{2,300}b){3,400};){1,200}";
  EXPECT_TRUE(matches(pattern, "aabaabaaab;"));
  EXPECT_FALSE(matches(pattern, "aabaab;"));
  EXPECT_FALSE(matches(pattern, "abaabaab;"));
}

TEST(OutputRule, FindsTokensAcrossTheEndsOfRules) {
  const std::vector<std::string> tokens = {"\"", "x\",", "x\"}", "abc", "\\", "\xC3", "\n", "é\":"};
  // A string, called by two: what follows it depends on the stack.
  const Expr character =
      choice({characters(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})), literal("\\\\")});
  const Expr string = sequence({literal("\""), repeat(character, 0, kUnbounded), literal("\"")});
  const Grammar grammar = {
      {{"object", sequence({literal("{"), call(1), literal(":"), call(1), literal("}")})},
       {"string", sequence({string, literal("")})}}};
  RuleMatcher matcher = matcher_of(grammar, tokens);
  ASSERT_TRUE(matcher.accept("{\"k"));
  EXPECT_EQ(allowed(matcher, tokens),
            (std::vector<std::string>{"\"", "abc", "\\", "\xC3", "é\":"}));
  ASSERT_TRUE(matcher.accept("\":\""));
  EXPECT_EQ(allowed(matcher, tokens),
            (std::vector<std::string>{"\"", "x\"}", "abc", "\\", "\xC3"}));
}

TEST(OutputRule, TellsForcedBytes) {
  RuleMatcher matcher = regex_matcher("(yes|no), I (do|did)");
  EXPECT_EQ(matcher.forced(100), "");
  ASSERT_TRUE(matcher.accept("y"));
  EXPECT_EQ(matcher.forced(100), "es, I d");
  EXPECT_EQ(matcher.forced(3), "es,");
  ASSERT_TRUE(matcher.accept("es, I do"));
  EXPECT_EQ(matcher.forced(100), "");
}

std::vector<std::string> forced_tokens(const RuleMatcher& matcher, size_t most,
                                       const std::vector<std::string>& tokens) {
  std::vector<std::string> found;
  for (const int32_t token : matcher.forced_tokens(most)) {
    found.push_back(tokens[static_cast<size_t>(token)]);
  }
  return found;
}

TEST(OutputRule, SplitsForcedBytesIntoTheLongestTokens) {
  using Tokens = std::vector<std::string>;
  const std::string pattern = "(yes|no), I (do|did)!";
  const Tokens tokens = {"y", "e", "es", ", ", ", I ", "I", "d", "dx", "i", "o", "!", "e", "!!"};
  RuleMatcher matcher = regex_matcher(pattern, tokens);
  EXPECT_EQ(forced_tokens(matcher, 9, tokens), Tokens{});
  ASSERT_TRUE(matcher.accept("y"));
  EXPECT_EQ(forced_tokens(matcher, 9, tokens), (Tokens{"es", ", I ", "d"}));
  EXPECT_EQ(forced_tokens(matcher, 2, tokens), (Tokens{"es", ", I "}));
  ASSERT_TRUE(matcher.accept("es, I do"));
  EXPECT_EQ(forced_tokens(matcher, 9, tokens), Tokens{"!"}) << "the other goes on with what cannot";

  const Tokens with_longer = {"y", "es", ", I ", "d", "did"};
  RuleMatcher other = regex_matcher(pattern, with_longer);
  ASSERT_TRUE(other.accept("y"));
  EXPECT_EQ(forced_tokens(other, 9, with_longer), (Tokens{"es", ", I "})) << "it may be did";
  const Tokens without = {"y", "es"};
  other = regex_matcher(pattern, without);
  ASSERT_TRUE(other.accept("y"));
  EXPECT_EQ(forced_tokens(other, 9, without), Tokens{"es"});
}

TEST(OutputRule, PrefersTheLastOfTokensThatAreAlike) {
  const RuleMatcher matcher = regex_matcher("ab", {"a", "ab", "b", "ab", "a"});
  EXPECT_EQ(matcher.forced_tokens(2), std::vector<int32_t>{3});
}

TEST(TokenTrie, ListsTokensThatBeginWithAByte) {
  const std::string long_one = " " + std::string(kShortToken, 'x');
  const auto trie = trie_of({"a", " ", " b", "", "a ", " b", " \n", long_one, "\xFF", " \xFF"});
  std::vector<int32_t> found;
  trie->for_each_with(' ', [&](int32_t token) { found.push_back(token); });
  std::ranges::sort(found);
  EXPECT_EQ(found, (std::vector<int32_t>{1, 2, 5, 6, 7, 9}));
  trie->for_each_with('b', [&](int32_t token) { ADD_FAILURE() << token; });
  trie->for_each_with(0xFF, [&](int32_t token) { EXPECT_EQ(token, 8); });
}

TEST(OutputRule, RefusesWhatHasNoText) {
  EXPECT_THROW(matcher_of({{{"r", sequence({literal("a"), call(0)})}}}, {}), Error);
  EXPECT_THROW(matcher_of({{{"r", choice({literal("a"), sequence({call(0), literal("b")})})}}}, {}),
               Error);
}

TEST(OutputRule, BoundsAmbiguity) {
  // Each a begins a call, or ends one, or is in one: as many stacks as there are such texts.
  const Expr more = sequence({call(1), choice({literal("a"), literal("aa")}), call(1)});
  const Grammar grammar = {
      {{"text", choice({literal("bc"), call(1)})},
       {"r", sequence({literal("a"), repeat(more, 0, kUnbounded), literal("a")})}}};
  RuleMatcher matcher = matcher_of(grammar, {"a", "b", "c"});
  RuleMatcher other = matcher;
  std::vector<uint32_t> bits(1);
  bool is_refused = false;
  try {
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(matcher.accept("a"));
      matcher.mask(bits);
    }
  } catch (const Error& error) {
    is_refused = true;
    EXPECT_NE(std::string(error.what()).find("ambiguous"), std::string::npos);
  }
  EXPECT_TRUE(is_refused);
  // Which is nothing to other texts of the rule.
  ASSERT_TRUE(other.accept("b"));
  other.mask(bits);
  EXPECT_EQ(bits.front(), 4U);
}

TEST(Regex, MatchesTheWholeText) {
  EXPECT_TRUE(matches("a+b?", "aab"));
  EXPECT_FALSE(matches("a+b?", "aabb"));
  EXPECT_FALSE(matches("a", "ba"));
  EXPECT_TRUE(matches("^(a|b)$", "b"));
  EXPECT_TRUE(matches("^a|b$", "b"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_TRUE(matches("(?:ab){2}(?<n>c)", "ababc"));
  EXPECT_TRUE(matches("a{,2}", "a{,2}"));
  EXPECT_TRUE(matches("x{0,3}", ""));
  EXPECT_FALSE(matches("x{2,3}", "x"));
}

TEST(Regex, HasClassesOfUnicode) {
  EXPECT_TRUE(matches("[^a-z]", "é"));
  EXPECT_TRUE(matches("[à-ü]{2}", "éè"));
  EXPECT_TRUE(matches(".", "\xF0\x9F\x98\x80"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_FALSE(matches(".", "\xF0\x9F\x98"));
  EXPECT_FALSE(matches("[^a]", "\xED\xA0\x80"));
  EXPECT_TRUE(matches("\\p{Lu}\\P{Lu}", "Éé"));
  EXPECT_TRUE(matches("\\u{1F600}\\uD83D\\uDE00\\x41\\cJ",
                      "\xF0\x9F\x98\x80\xF0\x9F\x98\x80"
                      "A\n"));
  EXPECT_TRUE(matches("[\\w.-]+@\\d\\s\\S[\\]a-]", "a.b-@7 é-"));
  // All code points, by the borders of UTF-8's lengths.
  for (const uint32_t code : {0x7FU, 0x80U, 0x7FFU, 0x800U, 0xFFFU, 0x1000U, 0xD7FFU, 0xE000U,
                              0xFFFFU, 0x10000U, 0xFFFFFU, 0x100000U, 0x10FFFFU}) {
    const Expr below = characters({{0, code}});
    const Expr above = characters({{code + 1, kLastCodePoint}});
    std::string text;
    const Grammar exactly = {{{"r", characters({{code, code}})}}};
    for (RuleMatcher matcher = matcher_of(exactly, {}); matcher.goes_on();) {
      const std::string next = matcher.forced(1);
      ASSERT_EQ(next.size(), 1U);
      ASSERT_TRUE(matcher.accept(next));
      text += next;
    }
    EXPECT_TRUE(matcher_of({{{"r", below}}}, {}).accept(text));
    if (code != kLastCodePoint) {
      RuleMatcher other = matcher_of({{{"r", above}}}, {});
      EXPECT_FALSE(other.accept(text) && other.complete()) << code;
    }
  }
}

TEST(Regex, NamesWhatItDoesNotSupport) {
  const std::vector<std::pair<std::string, std::string>> refused = {{"(?=a)", "looks ahead"},
                                                                    {"(a)\\1", "back reference"},
                                                                    {"\\bword", "word boundary"},
                                                                    {"(a", "without its )"},
                                                                    {"a)", "without its ("},
                                                                    {"[a", "without its ]"},
                                                                    {"*a", "repeats nothing"},
                                                                    {"a**", "repetition"},
                                                                    {"a{3,2}", "no order"},
                                                                    {"[z-a]", "range"},
                                                                    {"(?i)a", "flags"},
                                                                    {"\\p{Klingon}", "Klingon"},
                                                                    {"a^b", "anchor"},
                                                                    {"\\a", "escape"},
                                                                    {"\xFF", "UTF-8"}};
  for (const auto& [pattern, reason] : refused) {
    try {
      static_cast<void>(parse_regex(pattern));
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
}

TEST(OutputRule, RegularExpressionsHaveAMostLength) {
  EXPECT_NO_THROW(static_cast<void>(parse_regex(std::string(kMaxRegexBytes, 'k'))));
  EXPECT_THROW(static_cast<void>(parse_regex(std::string(kMaxRegexBytes + 1, 'k'))), Error);
}

}  // namespace
}  // namespace faststream::rules
