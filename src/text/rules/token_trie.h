// The tokens of a vocabulary by their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/bit_mask.h"
#include "text/rules/byte_set.h"

namespace faststream {
class Tokenizer;
}

namespace faststream::rules {

/// Tokens of more bytes are apart from the others: see Machine.
constexpr size_t kShortToken = 32;

/// Immutable once made; any number of threads may use it.
class TokenTrie {
 public:
  /// A node of a trie in preorder; without the root.
  struct Entry {
    uint32_t end = 0;    ///< the index after the last node below
    int32_t token = -1;  ///< that ends here; -1: none
    uint16_t depth = 0;  ///< bytes before this one
    uint8_t byte = 0;
  };
  /// The tokens' parts, each a trie of its own.
  enum Part : uint8_t {
    /// Short, of whole characters that a JSON string has as they are, but for a block of Unicode's
    /// punctuation.
    kText,
    kOthers,  ///< short
    kLong,
    kParts
  };

  /// bytes_of: of token ids below `vocab`; tokens of no bytes are never allowed.
  TokenTrie(int32_t vocab, const std::function<std::string(int32_t)>& bytes_of);

  [[nodiscard]] int32_t vocab() const { return vocab_; }
  /// Words of a set of tokens, one bit a token.
  [[nodiscard]] size_t words() const { return mask_words(vocab_); }
  [[nodiscard]] std::span<const Entry> part(Part part) const { return parts_[part]; }
  /// The nodes of a part whose tokens begin with a byte: from the byte's index to the next one's.
  [[nodiscard]] std::span<const uint32_t, 257> starts(Part part) const {
    return starts_of_parts_[part];
  }
  /// The set of tokens that are in the part kText.
  [[nodiscard]] std::span<const uint32_t> text_tokens() const { return text_tokens_; }
  /// Adds a token, and all that have the same bytes.
  void add(int32_t token, std::span<uint32_t> to) const {
    for_each_alike(token, [&](int32_t each) { set_bit(to, each); });
  }
  /// Calls task(token) for a token, and all that have the same bytes. -1: none.
  template <class Task>
  void for_each_alike(int32_t token, const Task& task) const {
    for (; token >= 0; token = same_[static_cast<size_t>(token)]) task(token);
  }
  /// Calls task(token) for those that begin with a byte.
  template <class Task>
  void for_each_with(uint8_t byte, const Task& task) const {
    for (int part = 0; part < kParts; ++part) {
      const auto& starts = starts_of_parts_[part];
      for (size_t i = starts[byte]; i < starts[byte + size_t{1}]; ++i) {
        for_each_alike(parts_[part][i].token, task);
      }
    }
  }
  /// Bytes of the longest token that may be allowed.
  [[nodiscard]] size_t depth() const { return depth_; }
  /// Whether every byte alone is a token: then some token begins any text.
  [[nodiscard]] bool has_all_bytes() const { return has_all_bytes_; }
  /// What a text may be split into next.
  struct Beginning {
    int32_t token = -1;  ///< the longest that the text begins with; none: -1
    ByteSet beyond;      ///< bytes after the whole text with which longer tokens go on
  };
  [[nodiscard]] Beginning begin(std::string_view text) const;
  [[nodiscard]] std::string_view bytes(int32_t token) const {
    const auto t = static_cast<size_t>(token);
    return std::string_view(bytes_).substr(starts_[t], starts_[t + 1] - starts_[t]);
  }

 private:
  int32_t vocab_;
  size_t depth_ = 0;
  bool has_all_bytes_ = false;
  std::string bytes_;           // of all tokens
  std::vector<size_t> starts_;  // [vocab + 1]
  std::vector<Entry> parts_[kParts];
  std::array<uint32_t, 257> starts_of_parts_[kParts] = {};
  std::vector<uint32_t> text_tokens_;
  std::vector<int32_t> same_;  // the next token of the same bytes, or -1
};

}  // namespace faststream::rules
