// A text that comes in pieces, as a terminal shows it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace faststream::cli {

/// Makes control characters visible, which a terminal would obey, those of Unicode that change the
/// direction of text too, and breaks lines between words.
/// A word is shown as it comes; where it turns out not to fit into its line, it is taken back and
/// goes on the next one.
class TerminalText {
 public:
  /// `columns` of the terminal; 0: its own line breaks are good enough. Widths of characters are
  /// those of the locale.
  explicit TerminalText(int columns) : columns_(columns) {}

  /// The terminal may have changed its size. A line that is begun ends as it would have; in a
  /// narrower terminal, where nobody knows how it is shown now, the terminal breaks it.
  void set_columns(int columns) {
    if (column_ == 0) {
      columns_ = columns;
    } else if (columns < columns_) {
      columns_ = 0;
    }
  }

  /// What to write for the next piece, which is UTF-8 of whole characters.
  std::string push(std::string_view text);

 private:
  void add(std::string_view shown, int width, std::string& out);
  void break_line(std::string& out);

  int columns_;
  int column_ = 0;      // where the next character goes
  std::string word_;    // the last one, as far as it is shown
  int word_width_ = 0;  // columns
};

/// Whether the terminal obeys sequences that move its cursor and colour its text, as all do but
/// those that TERM calls dumb or unknown.
bool obeys_sequences();

/// Makes the program's characters UTF-8, and their widths known, whatever the environment says.
void use_utf8();

/// Columns of the terminal that standard output is; 0 where it is none, or does not obey sequences.
int terminal_columns();

/// What writes pieces of generated text to standard output: as they are to files and pipes, as
/// TerminalText to a terminal; `wraps`: with lines broken between words. Throws as print() does.
std::function<void(std::string_view)> text_output(bool wraps);

}  // namespace faststream::cli
