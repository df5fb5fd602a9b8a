#include "cli/chat/edited_line.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cli/terminal_text.h"

namespace faststream::cli {
namespace {

class EditedLine : public testing::Test {
 protected:
  EditedLine() { use_utf8(); }

  static std::pair<int, int> place(const std::wstring& text, int columns) {
    const CursorPlace place = place_after(text, columns);
    return {place.row, place.column};
  }
};

TEST_F(EditedLine, IsBrokenIntoRows) {
  EXPECT_EQ(place(L"", 10), std::pair(0, 0));
  EXPECT_EQ(place(L"> 1234567", 10), std::pair(0, 9));
  EXPECT_EQ(place(L"> 12345678", 10), std::pair(1, 0)) << "the cursor is never beyond a full row";
  EXPECT_EQ(place(std::wstring(52, L'x'), 20), std::pair(2, 12));
  EXPECT_EQ(place(L"a\nb\n\nc", 10), std::pair(3, 1));
  EXPECT_EQ(place(L"a\tb\t", 20), std::pair(0, 16));
  EXPECT_EQ(place(L"a\t", 8), std::pair(1, 0));
  EXPECT_EQ(place(L"\x01\x7f", 10), std::pair(0, 4)) << "^A^?";
}

TEST_F(EditedLine, HasWideCharactersInOneRow) {
  EXPECT_EQ(place(L"世界", 10), std::pair(0, 4));
  EXPECT_EQ(place(L"123世", 4), std::pair(1, 2));
  EXPECT_EQ(place(L"12世", 4), std::pair(1, 0));
  EXPECT_EQ(place(L"e\u0301", 4), std::pair(0, 1));
}

TEST_F(EditedLine, IsFoundInTerminalsThatBreakRowsAnewAndInThoseThatCutThem) {
  const std::wstring text(52, L'x');
  EXPECT_EQ(rows_above_cursor(text, 100, 20, 12), 2) << "anew: two rows of 20, and 12";
  EXPECT_EQ(rows_above_cursor(text, 100, 20, 19), 0) << "cut: one row, the cursor at its end";
  EXPECT_EQ(rows_above_cursor(text, 20, 100, 52), 0) << "anew, in a wider one";
  EXPECT_EQ(rows_above_cursor(text, 20, 100, 12), 2) << "as it was";
  EXPECT_EQ(rows_above_cursor(text, 40, 20, 12), 1) << "either: what is above is left alone";
  EXPECT_EQ(rows_above_cursor(text, 100, 20, 5), 0) << "neither";
  EXPECT_EQ(rows_above_cursor(text, 20, 20, 12), 2) << "rows alone have changed";
}

TEST_F(EditedLine, TakesReportsOfTheCursorOutOfKeys) {
  std::string sent = "ab\x1b[12;5Rcd";
  EXPECT_EQ(take_cursor_report(sent), 4);
  EXPECT_EQ(sent, "abcd");
  sent = "\x1b[A\x1b[1;1R";
  EXPECT_EQ(take_cursor_report(sent), 0);
  EXPECT_EQ(sent, "\x1b[A");
  for (const char* other :
       {"", "\x1b", "\x1b[", "\x1b[12", "\x1b[12;", "\x1b[12;5", "\x1b[;5R", "\x1b[5R", "\x1b[12;R",
        "\x1b[1;0R", "\x1b[1;2;3R", "\x1b[1;99999999999999R", "\x1b[A", "12;5R"}) {
    sent = other;
    EXPECT_EQ(take_cursor_report(sent), std::nullopt) << other;
    EXPECT_EQ(sent, other);
  }
}

TEST_F(EditedLine, KnowsTheBeginningOfAReport) {
  for (const char* beginning : {"\x1b", "\x1b[", "\x1b[12", "\x1b[12;", "\x1b[12;5"}) {
    EXPECT_TRUE(begins_cursor_report(beginning)) << beginning;
  }
  for (const char* other : {"", "a", "a\x1b", "\x1b\x1b", "\x1bO", "\x1b[A", "\x1b[1;5D"}) {
    EXPECT_FALSE(begins_cursor_report(other)) << other;
  }
}

}  // namespace
}  // namespace faststream::cli
