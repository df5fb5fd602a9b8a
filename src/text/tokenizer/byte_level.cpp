#include "text/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "support/utf8.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

// Bytes that are not printable in Latin-1 are the characters from U+0100 on, in order.
constexpr bool is_printable(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

constexpr std::array<uint16_t, 256> kCharacters = [] {
  std::array<uint16_t, 256> characters{};
  uint16_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    characters[byte] = is_printable(byte) ? static_cast<uint16_t>(byte) : next++;
  }
  return characters;
}();

constexpr size_t kEnd = 0x100 + 68;  // of the alphabet

constexpr std::array<int16_t, kEnd> kByteOf = [] {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    append_utf8(text, kCharacters[static_cast<unsigned char>(byte)]);
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code >= kEnd || kByteOf[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[c.code]);
    at += c.size;
  }
  return bytes;
}

}  // namespace faststream
