// Characters of UTF-8 text, as Python's strings have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace faststream::jinja {

/// The length of the character that `text`, not empty, begins with; 1 for a byte that is none.
size_t character_size(std::string_view text);
/// Its code point; the byte for one that is none.
char32_t code_point(std::string_view character);
std::string encode_utf8(char32_t code);
/// How many there are.
size_t count_characters(std::string_view text);
/// Where the character of that number begins; text.size() when there are fewer.
size_t character_offset(std::string_view text, size_t index);

/// Where the character begins that ends at `end`, which is not 0.
size_t start_of_character(std::string_view text, size_t end);

bool is_space(char32_t code);
bool is_alpha(char32_t code);
bool is_cased(char32_t code);
/// What is passed over where a word's last letter is looked for: marks, apostrophes and the like.
bool is_case_ignorable(char32_t code);
/// As isdigit() counts them, superscripts and the like too.
bool is_digit(char32_t code);
/// Whether repr() shows it as it is.
bool is_printable(char32_t code);
/// What a name may begin with, and go on with.
bool begins_name(char32_t code);
bool continues_name(char32_t code);

/// One character in another case, which may be several: Unicode's full mappings, but for a sigma's
/// that ends a word.
std::string to_upper(std::string_view character);
std::string to_lower(std::string_view character);
std::string to_title(std::string_view character);

}  // namespace faststream::jinja
