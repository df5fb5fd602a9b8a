#include "support/utf8.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace faststream {
namespace {

/// Python's str.isspace(): U+0009 to U+000D, U+001C to U+0020, U+0085, U+00A0, U+1680, U+2000 to
/// U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
constexpr std::array<std::string_view, 29> kWhitespace = {
    "\x09",         "\x0A",         "\x0B",         "\x0C",         "\x0D",         "\x1C",
    "\x1D",         "\x1E",         "\x1F",         "\x20",         "\xC2\x85",     "\xC2\xA0",
    "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84",
    "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A",
    "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

}  // namespace

int utf8_character(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;  // a continuation, an overlong form, above U+10FFFF
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // RFC 3629, section 4: only the second byte's range depends on the first.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return -1;
    if (byte(i) < (i == 1 ? low : 0x80U) || byte(i) > (i == 1 ? high : 0xBFU)) return 0;
  }
  return static_cast<int>(length);
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  constexpr std::array<unsigned, 5> kLeadBits = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t code = byte(0) & kLeadBits[character.size()];
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

void append_utf8(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0U | code >> 6), static_cast<char>(0x80U | (code & 0x3FU))};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0U | code >> 12), static_cast<char>(0x80U | (code >> 6 & 0x3FU)),
             static_cast<char>(0x80U | (code & 0x3FU))};
  } else {
    text +=
        {static_cast<char>(0xF0U | code >> 18), static_cast<char>(0x80U | (code >> 12 & 0x3FU)),
         static_cast<char>(0x80U | (code >> 6 & 0x3FU)), static_cast<char>(0x80U | (code & 0x3FU))};
  }
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const int length = utf8_character(text);
    if (length <= 0) return false;
    text.remove_prefix(static_cast<size_t>(length));
  }
  return true;
}

std::string take_utf8(std::string& pending) {
  std::string done;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const int length = utf8_character(rest);
    if (length < 0) break;
    if (length == 0) {
      done += kReplacementCharacter;
      rest.remove_prefix(1);
    } else {
      done += rest.substr(0, static_cast<size_t>(length));
      rest.remove_prefix(static_cast<size_t>(length));
    }
  }
  pending.erase(0, pending.size() - rest.size());
  return done;
}

std::string valid_utf8(std::string text) {
  std::string valid = take_utf8(text);
  for (size_t i = 0; i < text.size(); ++i) valid += kReplacementCharacter;
  return valid;
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(kAsciiBlanks), text.size());
  return text.substr(first, text.find_last_not_of(kAsciiBlanks) + 1 - first);
}

std::string_view strip_left(std::string_view text) {
  const auto starts = [&](std::string_view space) { return text.starts_with(space); };
  for (;;) {
    while (text.starts_with(' ') || text.starts_with('\n')) text.remove_prefix(1);  // most are
    const auto* const found = std::find_if(kWhitespace.begin(), kWhitespace.end(), starts);
    if (found == kWhitespace.end()) return text;
    text.remove_prefix(found->size());
  }
}

std::string_view strip_right(std::string_view text) {
  const auto ends = [&](std::string_view space) { return text.ends_with(space); };
  for (;;) {
    while (text.ends_with(' ') || text.ends_with('\n')) text.remove_suffix(1);
    const auto* const found = std::find_if(kWhitespace.begin(), kWhitespace.end(), ends);
    if (found == kWhitespace.end()) return text;
    text.remove_suffix(found->size());
  }
}

}  // namespace faststream
