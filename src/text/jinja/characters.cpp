#include "text/jinja/characters.h"

#include <utf8proc.h>

#include "support/utf8.h"

namespace faststream::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

size_t character_size(std::string_view text) {
  const int size = utf8_character(text);
  return size > 0 ? static_cast<size_t>(size) : 1;
}

char32_t code_point(std::string_view character) {
  const int size = utf8_character(character);
  if (size <= 0) return static_cast<unsigned char>(character.front());
  return faststream::code_point(character.substr(0, static_cast<size_t>(size)));
}

std::string encode_utf8(char32_t code) {
  std::string character;
  append_utf8(character, code);
  return character;
}

size_t count_characters(std::string_view text) {
  size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(character_size(text));
  return n;
}

size_t character_offset(std::string_view text, size_t index) {
  std::string_view rest = text;
  for (; index > 0 && !rest.empty(); --index) rest.remove_prefix(character_size(rest));
  return text.size() - rest.size();
}

bool is_space(char32_t code) {
  const std::string character = encode_utf8(code);
  return strip_left(character).empty();
}

bool is_alpha(char32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(char32_t code) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0; }
bool is_lower(char32_t code) { return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0; }
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_numeric(char32_t code) {
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  const auto kind = category(code);
  return kind != UTF8PROC_CATEGORY_CN &&
         !(kind >= UTF8PROC_CATEGORY_ZS && kind <= UTF8PROC_CATEGORY_CO);
}

bool begins_name(char32_t code) {
  return code == '_' || is_alpha(code) || category(code) == UTF8PROC_CATEGORY_NL;
}

bool continues_name(char32_t code) {
  const auto kind = category(code);
  return begins_name(code) || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_PC;
}

std::string to_upper(std::string_view character) {
  if (character == "\xC3\x9F") return "SS";  // ß
  return encode_utf8(static_cast<char32_t>(
      utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point(character)))));
}

std::string to_lower(std::string_view character) {
  return encode_utf8(static_cast<char32_t>(
      utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point(character)))));
}

}  // namespace faststream::jinja
