#include "text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "support/utf8.h"
#include "text/jinja/character_tables.h"

namespace faststream::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

template <size_t n>
bool is_in(const std::array<CodeRange, n>& ranges, char32_t code) {
  const auto* const range =
      std::lower_bound(ranges.begin(), ranges.end(), code,
                       [](const CodeRange& each, char32_t wanted) { return each.last < wanted; });
  return range != ranges.end() && range->first <= code;
}

const SpecialCase* special_case(char32_t code) {
  const auto* const found =
      std::lower_bound(kSpecialCases.begin(), kSpecialCases.end(), code,
                       [](const SpecialCase& each, char32_t wanted) { return each.code < wanted; });
  return found != kSpecialCases.end() && found->code == code ? found : nullptr;
}

std::string text_of(const std::array<char32_t, 3>& codes) {
  std::string text;
  for (const char32_t code : codes) {
    if (code != 0) append_utf8(text, code);
  }
  return text;
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

size_t start_of_character(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) --at;
  return at;
}

bool is_space(char32_t code) {
  const std::string character = encode_utf8(code);
  return strip_left(character).empty();
}

bool is_alpha(char32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_cased(char32_t code) {
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT || is_in(kOtherCased, code);
}

bool is_case_ignorable(char32_t code) {
  constexpr std::u32string_view kInWords =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
         kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_SK || kInWords.find(code) != kInWords.npos;
}

bool is_digit(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND || is_in(kOtherDigits, code);
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
  const char32_t code = code_point(character);
  if (const SpecialCase* special = special_case(code)) return text_of(special->upper);
  return encode_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

std::string to_title(std::string_view character) {
  const char32_t code = code_point(character);
  if (const SpecialCase* special = special_case(code)) return text_of(special->title);
  return encode_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

std::string to_lower(std::string_view character) {
  if (character == "\u0130") return "i\u0307";  // the only one that becomes two
  return encode_utf8(static_cast<char32_t>(
      utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point(character)))));
}

}  // namespace faststream::jinja
