#include "text/utf8.h"

#include <cstddef>

namespace faststream {

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

}  // namespace faststream
