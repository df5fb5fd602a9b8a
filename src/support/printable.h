// Foreign text in messages: names in files, arguments, what a file holds.
#pragma once

#include <string>
#include <string_view>

namespace faststream {

/// `text` on one line that no terminal obeys: control characters (C0, DEL, C1), line and paragraph
/// separators and marks that change the direction of text become \n, \r, \t, \xHH or \u{HHHH}, and
/// so does each byte that is not UTF-8 (\xHH). All else, backslashes too, stays as it is: what is
/// shown is for people, and cannot be turned back.
std::string printable(std::string_view text);

/// printable(text) in double quotes; of a long text the start and "...".
std::string in_quotes(std::string_view text);

}  // namespace faststream
