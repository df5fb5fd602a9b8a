#include "cli/terminal_text.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <memory>

#include "program/output.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

constexpr int kTabStop = 8;

}  // namespace

std::string TerminalText::push(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const int length = utf8_character(text);
    const std::string_view character = text.substr(0, static_cast<size_t>(std::max(length, 1)));
    text.remove_prefix(character.size());
    const char32_t code = length > 0 ? code_point(character) : 0;
    if (code == '\n') {
      out += '\n';
      column_ = 0;
      word_.clear();
      word_width_ = 0;
    } else if (code == '\t') {
      out += '\t';
      column_ += kTabStop - column_ % kTabStop;
      word_.clear();
      word_width_ = 0;
    } else if (const std::string shown = printable(character); shown != character) {
      add(shown, static_cast<int>(shown.size()), out);
    } else {
      add(character, std::max(wcwidth(static_cast<wchar_t>(code)), 0), out);
    }
  }
  return out;
}

// A character, or the escape that stands for one.
void TerminalText::add(std::string_view shown, int width, std::string& out) {
  if (shown == " ") {
    word_.clear();
    word_width_ = 0;
    if (columns_ > 0 && column_ >= columns_) {  // the end of the line is space enough
      out += '\n';
      column_ = 0;
      return;
    }
    out += ' ';
    ++column_;
    return;
  }
  if (columns_ > 0 && column_ + width > columns_) break_line(out);
  out += shown;
  column_ += width;
  word_ += shown;
  word_width_ += width;
}

// Takes the word back to the next line, unless it has this one to itself.
void TerminalText::break_line(std::string& out) {
  if (word_width_ >= column_) {
    out += '\n';
    column_ = 0;
    word_.clear();
    word_width_ = 0;
    return;
  }
  // From the line's start: after a character in the last column a cursor stays where it is.
  out += "\r\x1b[" + std::to_string(column_ - word_width_) + "C\x1b[K\n" + word_;
  column_ = word_width_;
}

bool obeys_sequences() {
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr) return false;
  const std::string_view name = terminal;
  return !name.empty() && name != "dumb" && name != "unknown";
}

void use_utf8() {
  const char* set = std::setlocale(LC_CTYPE, "");
  if (set == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
    (void)std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

int terminal_columns() {
  winsize size = {};
  if (!obeys_sequences() || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

std::function<void(std::string_view)> text_output(bool wraps) {
  if (isatty(STDOUT_FILENO) == 0) return &print;
  use_utf8();
  const auto text = std::make_shared<TerminalText>(0);
  return [text, wraps](std::string_view piece) {
    text->set_columns(wraps ? terminal_columns() : 0);
    print(text->push(piece));
  };
}

}  // namespace faststream::cli
