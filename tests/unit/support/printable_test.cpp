#include "support/printable.h"

#include <gtest/gtest.h>

#include "support/utf8.h"

namespace faststream {
namespace {

TEST(Printable, LeavesTextOfAllScriptsAsItIs) {
  for (const char* text :
       {"", "plain text", "C:\\n \"x\"", "Grüße, 世界 🙂 שלום", "a\u00A0b\u00AD"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(printable("\x1B[2J\x07\x7F"), "\\x1B[2J\\x07\\x7F");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u009B2J"), "\\u{009B}2J");  // the same as ESC [
  EXPECT_EQ(printable("\u202Etxt.exe\u2028\u2066\u200F"),
            "\\u{202E}txt.exe\\u{2028}\\u{2066}\\u{200F}");
}

TEST(Printable, ShowsEachByteThatIsNotUtf8) {
  EXPECT_EQ(printable("a\xFF\xC3"), "a\\xFF\\xC3");
  EXPECT_EQ(printable("\x9B"), "\\x9B");
  EXPECT_EQ(printable("\xED\xA0\x80z"), "\\xED\\xA0\\x80z");  // a surrogate
}

TEST(Printable, GivesUtf8WithoutControlCharactersForAnyTwoBytes) {
  for (int i = 0; i < 0x10000; ++i) {
    const std::string text = {static_cast<char>(i >> 8), static_cast<char>(i)};
    const std::string shown = printable(text);
    ASSERT_TRUE(is_valid_utf8(shown)) << i;
    for (const char c : shown) ASSERT_FALSE((c >= 0 && c < ' ') || c == '\x7F') << i;
    ASSERT_EQ(printable(shown), shown) << i;
  }
}

TEST(Printable, QuotesTheStartOfALongText) {
  EXPECT_EQ(in_quotes("a\n"), "\"a\\n\"");
  EXPECT_EQ(in_quotes(std::string(64, 'x')), '"' + std::string(64, 'x') + '"');
  EXPECT_EQ(in_quotes(std::string(65, 'x')), '"' + std::string(64, 'x') + "...\"");
  EXPECT_EQ(in_quotes(std::string(63, 'x') + "ü"), '"' + std::string(63, 'x') + "...\"");
}

}  // namespace
}  // namespace faststream
