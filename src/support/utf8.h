// UTF-8, checked character by character (RFC 3629).
#pragma once

#include <string>
#include <string_view>

namespace faststream {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  ///< U+FFFD
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";         ///< U+FEFF, as files begin with

/// What the first bytes of `bytes` (not empty) are: the length, 1 to 4, of a valid character; 0
/// where none can begin like this; -1 where the end comes before it is decided. Overlong forms,
/// surrogates and code points above U+10FFFF are invalid.
int utf8_character(std::string_view bytes);

/// The code point of a character that utf8_character() calls valid.
char32_t code_point(std::string_view character);

/// Appends the character of a code point up to U+10FFFF.
void append_utf8(std::string& text, char32_t code);

bool is_valid_utf8(std::string_view text);

/// Takes all that is decided from the front of `pending` and returns it, each invalid byte replaced
/// by U+FFFD. What stays is nothing or an incomplete character.
std::string take_utf8(std::string& pending);

/// All of `text`, each byte that is no part of a valid character replaced by U+FFFD.
std::string valid_utf8(std::string text);

/// `text` without the whitespace at its start or end: what Unicode calls so, as Python's str.strip
/// has it. Invalid UTF-8 is none.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

inline constexpr std::string_view kAsciiBlanks = " \t\r\n\v\f";
/// `text` without those around it.
std::string_view without_blanks(std::string_view text);

}  // namespace faststream
