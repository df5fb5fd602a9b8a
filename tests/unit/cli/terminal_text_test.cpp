#include "cli/terminal_text.h"

#include <gtest/gtest.h>

#include <clocale>
#include <vector>

namespace faststream::cli {
namespace {

/// What a terminal of `columns` shows after `written`: its lines, without spaces at their ends. It
/// knows what TerminalText sends and nothing else.
std::vector<std::string> screen(const std::string& written, size_t columns) {
  std::vector<std::string> lines(1);
  size_t at = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    std::string& line = lines.back();
    if (written[i] == '\n') {
      lines.emplace_back();
      at = 0;
    } else if (written[i] == '\r') {
      at = 0;
    } else if (written.compare(i, 2, "\x1b[") == 0) {
      const size_t end = written.find_first_of("CK", i);
      if (written[end] == 'C') {
        at += std::stoul(written.substr(i + 2, end - i - 2));
      } else {
        line.resize(at);
      }
      i = end;
    } else {
      EXPECT_LT(at, columns) << "the terminal has to break a line";
      line.resize(at, ' ');
      line += written[i];
      ++at;
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::vector<std::string> shown(const std::string& text, size_t columns, size_t piece) {
  TerminalText terminal(static_cast<int>(columns));
  std::string written;
  for (size_t i = 0; i < text.size(); i += piece) written += terminal.push(text.substr(i, piece));
  return screen(written, columns);
}

TEST(TerminalText, BreaksLinesBetweenWordsHoweverTheTextComes) {
  const std::vector<std::string> expected = {"The quick",  "brown fox", "jumps over",
                                             "extraordin", "ary",       "lazy dogs."};
  const std::string text = "The quick brown fox jumps over extraordinary\nlazy dogs.";
  for (const size_t piece : {1, 2, 3, 7, 100}) EXPECT_EQ(shown(text, 10, piece), expected) << piece;
}

TEST(TerminalText, LeavesTheRestOfALineToATerminalThatWasNarrowed) {
  TerminalText terminal(20);
  EXPECT_EQ(terminal.push("The quick brown "), "The quick brown ");
  terminal.set_columns(10);
  EXPECT_EQ(terminal.push("fox jumps\n"), "fox jumps\n");  // no word is taken back
  terminal.set_columns(10);
  EXPECT_EQ(terminal.push("over lazy"), "over lazy");
  EXPECT_NE(terminal.push(" dogs"), " dogs");
}

TEST(TerminalText, TakesAFullLineAsItIs) {
  EXPECT_EQ(shown("12345 7890 abc", 10, 1), (std::vector<std::string>{"12345 7890", "abc"}));
  EXPECT_EQ(shown("1234567890\nabc", 10, 1), (std::vector<std::string>{"1234567890", "abc"}));
}

TEST(TerminalText, CountsColumnsNotBytes) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  TerminalText terminal(6);
  EXPECT_EQ(terminal.push("\u00e4\u00f6\u00fc \u4e16\u754c"),
            "\u00e4\u00f6\u00fc \u4e16\r\x1b[4C\x1b[K\n\u4e16\u754c");
}

TEST(TerminalText, TakesAnotherWidthFromTheNextLineOn) {
  TerminalText terminal(6);
  EXPECT_EQ(terminal.push("aaa"), "aaa");
  terminal.set_columns(20);
  EXPECT_EQ(terminal.push(" bbb\n"), " bb\r\x1b[4C\x1b[K\nbbb\n");
  terminal.set_columns(20);
  EXPECT_EQ(terminal.push("aaa bbb"), "aaa bbb");
}

TEST(TerminalText, ShowsControlCharactersAsTheyAreWritten) {
  TerminalText terminal(0);
  EXPECT_EQ(terminal.push("a\tb\x1b[31m\a\r\n\u009b1A\x7f"),
            "a\tb\\x1B[31m\\x07\\r\n\\u{009B}1A\\x7F");
  EXPECT_EQ(terminal.push("\u202Egpj.\u2066"), "\\u{202E}gpj.\\u{2066}");
}

}  // namespace
}  // namespace faststream::cli
