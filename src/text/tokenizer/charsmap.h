// SentencePiece's compiled normalization rules ("precompiled_charsmap").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/utf8.h"
#include "text/tokenizer/tables.h"

namespace faststream {

/// Rules that replace what a text begins with: a double-array trie (darts-clone) over what they
/// replace, whose values point into zero-terminated strings. Used in place and not trusted: where
/// the bytes lead out of themselves, or to what is no UTF-8, there is no rule.
class Charsmap {
 public:
  /// No rules.
  Charsmap() = default;
  /// `bytes`, which must outlive it: 4 bytes of size, the trie, the strings; empty for no rules.
  explicit Charsmap(std::string_view bytes);

  /// Whether SentencePiece, which trusts the bytes, can: they are empty, or no search leads out of
  /// them or to what is no string of UTF-8. Takes some milliseconds.
  static bool is_sound(std::string_view bytes);

  [[nodiscard]] bool empty() const { return units_.size() == 0; }

  /// Calls found(length, output) for the rules that replace the first `length` bytes of `text`, the
  /// shortest first, until that returns false.
  template <typename Found>
  void search(std::string_view text, Found&& found) const {
    if (empty()) return;
    size_t node = offset(units_[0]);
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      node ^= byte;
      if (node >= units_.size() || label(units_[node]) != byte) return;
      const bool is_rule = has_leaf(units_[node]);
      node ^= offset(units_[node]);
      if (!is_rule) continue;
      if (node >= units_.size() || value(units_[node]) >= strings_.size()) return;
      const std::string_view rest = strings_.substr(value(units_[node]));
      const std::string_view output = rest.substr(0, rest.find('\0'));
      if (!is_valid_utf8(output) || !found(i + 1, output)) return;
    }
  }

 private:
  // The units of darts-clone's double array.
  static bool has_leaf(uint32_t unit) { return (unit & 0x100U) != 0; }
  static uint32_t label(uint32_t unit) { return unit & 0x800000FFU; }  // a leaf's is none of a byte
  static uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFFU; }
  static size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }
  class Walk;

  TableArray<uint32_t> units_;
  std::string_view strings_;
};

}  // namespace faststream
