// Characters and their properties, as Rust's char and the crates of Hugging Face's tokenizers have
// them (the tables are utf8proc's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace faststream {

struct Character {
  uint32_t code = 0;
  size_t size = 1;  ///< bytes
};

/// What begins at `at` in valid UTF-8.
inline Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1FU) << 6 | (byte(1) & 0x3FU), 2};
  if (lead < 0xF0) {
    return {(lead & 0xFU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU), 3};
  }
  return {
      (lead & 0x7U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU),
      4};
}

bool is_ascii(std::string_view text);

bool is_whitespace(uint32_t code);       ///< the property White_Space
bool is_numeric(uint32_t code);          ///< category N
bool is_punctuation(uint32_t code);      ///< category P, and all of ASCII's
bool is_mark(uint32_t code);             ///< category M
bool is_nonspacing_mark(uint32_t code);  ///< category Mn
bool is_other(uint32_t code);            ///< categories Cc, Cf, Co
/// What \w matches in Rust's regex: letters, marks, decimal numbers, connectors, joiners.
bool is_word(uint32_t code);

/// Appends the lower case of a character, one or two of them.
void append_lower_case(std::string& text, uint32_t code);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Valid UTF-8 in a Unicode normal form (UAX #15), in time n log n and some 20 bytes of memory for
/// each byte of the longest stretch without ASCII.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace faststream
