#include "support/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace faststream {
namespace {

/// Whether three or fewer bytes decode by arithmetic to a code point that this length is for.
bool encodes_a_code_point(const std::string& bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const auto is_continuation = [&](size_t i) { return (at(i) & 0xC0U) == 0x80; };
  if (bytes.size() == 1) return at(0) < 0x80;
  if (bytes.size() == 2) return (at(0) >> 5) == 6 && is_continuation(1) && (at(0) & 0x1EU) != 0;
  const unsigned code = (at(0) & 0xFU) << 12 | (at(1) & 0x3FU) << 6 | (at(2) & 0x3FU);
  return (at(0) >> 4) == 14 && is_continuation(1) && is_continuation(2) && code >= 0x800 &&
         (code < 0xD800 || code > 0xDFFF);
}

TEST(Utf8, AgreesWithArithmeticOnAllTwoAndThreeByteStrings) {
  for (int a = 0; a < 256; ++a) {
    EXPECT_EQ(utf8_character({std::string(1, static_cast<char>(a))}) == 1, a < 0x80);
    for (int b = 0; b < 256; ++b) {
      const std::string two = {static_cast<char>(a), static_cast<char>(b)};
      ASSERT_EQ(utf8_character(two) == 2, encodes_a_code_point(two)) << a << " " << b;
      for (int c = 0; c < 256; c += 7) {
        const std::string three = {static_cast<char>(a), static_cast<char>(b),
                                   static_cast<char>(c)};
        ASSERT_EQ(utf8_character(three) == 3, encodes_a_code_point(three))
            << a << " " << b << " " << c;
      }
    }
  }
}

TEST(Utf8, KnowsTheBordersOfFourByteCharacters) {
  EXPECT_EQ(utf8_character("\xF0\x90\x80\x80"), 4);  // U+10000
  EXPECT_EQ(utf8_character("\xF4\x8F\xBF\xBF"), 4);  // U+10FFFF
  EXPECT_EQ(utf8_character("\xF0\x8F\xBF\xBF"), 0);  // overlong
  EXPECT_EQ(utf8_character("\xF4\x90\x80\x80"), 0);  // above U+10FFFF
  EXPECT_EQ(utf8_character("\xF5\x80\x80\x80"), 0);
}

TEST(Utf8, TellsIncompleteFromInvalid) {
  EXPECT_EQ(utf8_character("\xE2"), -1);
  EXPECT_EQ(utf8_character("\xE2\x82"), -1);
  EXPECT_EQ(utf8_character("\xF0\x9F\x98"), -1);
  EXPECT_EQ(utf8_character("\xE2x"), 0);
  EXPECT_EQ(utf8_character("\xE0\x80"), 0) << "no third byte can make this valid";
  EXPECT_EQ(utf8_character("\xED\xA0"), 0) << "half of a surrogate";
}

TEST(Utf8, TakesWholeCharactersAndLeavesTheRest) {
  std::string pending = "a\x80\xE2\x82\xACz\xF0\x9F";
  EXPECT_EQ(take_utf8(pending), "a\xEF\xBF\xBD\xE2\x82\xACz");
  EXPECT_EQ(pending, "\xF0\x9F");
  pending += "\x98\x80";
  EXPECT_EQ(take_utf8(pending), "\xF0\x9F\x98\x80");
  EXPECT_EQ(pending, "");
}

}  // namespace
}  // namespace faststream
