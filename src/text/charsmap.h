// SentencePiece's compiled normalization rules ("precompiled_charsmap").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// Rules that replace what a text begins with: a double-array trie (darts-clone) over what they
/// replace, whose values point into zero-terminated strings.
class Charsmap {
 public:
  /// No rules.
  Charsmap() = default;
  /// `bytes`: 4 bytes of size, the trie, the strings; empty for no rules. Nothing where the trie
  /// can lead a search out of itself or to what is no string of UTF-8.
  static std::optional<Charsmap> parse(std::string_view bytes);

  struct Rule {
    size_t length = 0;        ///< bytes of the text that it replaces
    std::string_view output;  ///< UTF-8, perhaps empty; the Charsmap's own
  };
  /// The rule for the longest beginning of `text`.
  [[nodiscard]] std::optional<Rule> find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string strings_;
};

}  // namespace faststream
