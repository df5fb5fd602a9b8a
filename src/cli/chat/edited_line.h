// Where a terminal shows a line that is edited, and what it says of its cursor.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace faststream::cli {

/// Rows and columns from where a text begins.
struct CursorPlace {
  int row = 0;
  int column = 0;
};

/// The cursor's after a text that begins a row of so many columns, at least 2, as the editor
/// (libedit) shows it: control characters take two columns, tabs reach to the next eighth one.
/// Widths of characters are those of the locale.
CursorPlace place_after(std::wstring_view text, int columns);

/// Rows of the text above the cursor, which is after it, where the terminal had `before` columns
/// and has `now`, and its cursor is in `column`: some terminals break rows anew, others cut them.
/// The fewer if that tells nothing, and 0 where the cursor can be in neither place.
int rows_above_cursor(std::wstring_view text, int before, int now, int column);

/// Takes the answer to "\x1b[6n" (CPR of ECMA-48) out of what a terminal sent; the column in it,
/// from 0.
std::optional<int> take_cursor_report(std::string& sent);

/// Whether what a terminal sent is the beginning of such an answer, which may not have come whole.
bool begins_cursor_report(std::string_view sent);

}  // namespace faststream::cli
