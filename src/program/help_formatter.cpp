#include "program/help_formatter.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace faststream {
namespace {

// Columns of the terminal, or of a text that goes elsewhere.
size_t help_width() {
  constexpr size_t kLeast = 60;
  constexpr size_t kMost = 120;
  constexpr size_t kElsewhere = 100;
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kElsewhere;
  return std::clamp<size_t>(size.ws_col, kLeast, kMost);
}

}  // namespace

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string all = Formatter::make_option_opts(option);
  return all.substr(0, all.find(' ' + get_label("Excludes") + ':'));
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return in_lines(Formatter::make_option_desc(option), help_width() - get_column_width());
}

std::string in_lines(const std::string& text, size_t width) {
  std::istringstream words(text);
  std::string lines;
  size_t column = 0;
  for (std::string word; words >> word;) {
    if (column > 0) {
      const bool fits = column + 1 + word.size() <= width;
      lines += fits ? ' ' : '\n';
      column = fits ? column + 1 : 0;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

}  // namespace faststream
