#include "support/printable.h"

#include <array>
#include <cstddef>
#include <cstdio>

#include "support/utf8.h"

namespace faststream {
namespace {

bool is_obeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) ||        // C0, DEL and C1
         code == 0x061C || code == 0x200E || code == 0x200F ||  // Unicode's Bidi_Control, and
         (code >= 0x2028 && code <= 0x202E) ||                  // the two separators before it
         (code >= 0x2066 && code <= 0x2069);
}

std::string escape(const char* format, unsigned code) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, code);
  return text.data();
}

std::string show(std::string_view character) {
  const char32_t code = code_point(character);
  if (!is_obeyed(code)) return std::string(character);
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return code < 0x80 ? escape("\\x%02X", code) : escape("\\u{%04X}", code);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const int length = utf8_character(text);
    if (length > 0) {
      shown += show(text.substr(0, static_cast<size_t>(length)));
    } else {
      shown += escape("\\x%02X", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(length > 0 ? static_cast<size_t>(length) : 1);
  }
  return shown;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  std::string start(text.substr(0, kMaxBytes));
  if (start.size() == text.size()) return '"' + printable(start) + '"';
  return '"' + printable(take_utf8(start)) + "...\"";
}

}  // namespace faststream
