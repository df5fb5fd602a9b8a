#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "support/utf8.h"

namespace faststream {
namespace {

TEST(StopMatcher, HoldsBackWhatMayBeginAStopString) {
  StopMatcher matcher({"\nUser:"});
  EXPECT_EQ(matcher.push("Hello"), "Hello");
  EXPECT_EQ(matcher.push(" you\n"), " you");
  EXPECT_EQ(matcher.push("Us"), "");
  EXPECT_EQ(matcher.push("ually\nUse"), "\nUsually");
  EXPECT_EQ(matcher.push("r"), "");
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.push(": more"), "");
  EXPECT_EQ(matcher.matched(), "\nUser:");
}

TEST(StopMatcher, PassesNothingOnAfterAMatch) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("the END of it"), "the ");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.matched(), "END");
}

TEST(StopMatcher, GivesWhatItHeldBackAtTheEnd) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("the EN"), "the ");
  EXPECT_EQ(matcher.finish(), "EN");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, PassesEverythingOnWithoutStopStrings) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("anything"), "anything");
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, TakesTheMatchThatEndsFirstAndTheLongestOfThose) {
  StopMatcher inner({"abcd", "bc"});
  EXPECT_EQ(inner.push("xabcd"), "xa");
  EXPECT_EQ(inner.matched(), "bc");
  StopMatcher longest({"c", "abc", "bc"});
  EXPECT_EQ(longest.push("xabc"), "x");
  EXPECT_EQ(longest.matched(), "abc");
}

TEST(StopMatcher, FindsAStringThatBeginsInsideAFailedMatch) {
  StopMatcher matcher({"aabaac"});
  EXPECT_EQ(matcher.push("aabaabaac!"), "aab");
  EXPECT_EQ(matcher.matched(), "aabaac");
}

TEST(StopMatcher, NeverSplitsACharacter) {
  StopMatcher matcher({"\xC3\xA9\xC3\xA8", "\xC3\xAA!"});
  for (const char* piece : {"\xC3\xA9", "\xC3\xAA", "\xC3\xA9", "\xC3\xA9", "a"}) {
    EXPECT_TRUE(is_valid_utf8(matcher.push(piece))) << piece;
  }
}

/// What a whole text looks like up to the first match, found by trying every end.
std::pair<std::string, std::optional<std::string>> naive(const std::string& text,
                                                         const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* found = nullptr;
    for (const std::string& stop : stops) {
      const bool ends_here = std::string_view(text).substr(0, end).ends_with(stop);
      if (ends_here && (found == nullptr || stop.size() > found->size())) found = &stop;
    }
    if (found != nullptr) return {text.substr(0, end - found->size()), *found};
  }
  return {text, std::nullopt};
}

std::string random_text(std::mt19937& random, size_t longest) {
  std::string text(random() % (longest + 1), 'a');
  for (char& c : text) c = static_cast<char>('a' + random() % 3);
  return text;
}

TEST(StopMatcher, AgreesWithANaiveSearchOnRandomTextsAndBorders) {
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops(random() % 4);
    size_t longest = 1;
    for (std::string& stop : stops) {
      stop = random_text(random, 5) + "b";
      longest = std::max(longest, stop.size());
    }
    const std::string text = random_text(random, 40);
    const auto [expected, matched] = naive(text, stops);

    StopMatcher matcher(stops);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const std::string piece = text.substr(at, random() % 5);
      at += piece.size();
      got += matcher.push(piece);
      if (!matcher.matched()) {
        ASSERT_LT(at - got.size(), longest) << "held back too much of " << text;
      }
    }
    got += matcher.finish();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(matcher.matched(), matched) << text;
  }
}

TEST(StopMatcher, TakesLinearTimeOnRepetitiveTexts) {
  StopMatcher matcher({std::string(50'000, 'a') + "b"});
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(matcher.push(text).size(), text.size() - 50'000);
  // A quadratic search compares 5e10 bytes.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace faststream
