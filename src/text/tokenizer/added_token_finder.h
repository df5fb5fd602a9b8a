// Added tokens in a text, such as <|im_end|>.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "text/tokenizer/tables.h"

namespace faststream {

/// Immutable; any number of threads may use it.
class AddedTokenFinder {
 public:
  enum class Which {
    as_written,          ///< those that are looked for before the text is normalized
    normalized,          ///< those that are looked for in the normalized text, as they are there
    special_as_written,  ///< as_written, and the special ones of `normalized` as they are written
  };
  /// `tables` must outlive it.
  AddedTokenFinder(const TokenizerTables& tables, Which which);

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

  /// A part of a text: an added token, with the white space that it takes, or what lies between.
  struct Part {
    size_t begin;
    size_t end;
    int32_t id;  ///< TokenizerTables::kNone between tokens
  };
  /// Whether a special token may stand there.
  using Allowed = std::function<bool(size_t begin, size_t end)>;

  /// Calls on_part for all parts of valid UTF-8, which cover it, as Hugging Face's library finds
  /// them: at each place the longest token, from left to right.
  void split(std::string_view text, const Allowed& allowed,
             const std::function<void(const Part&)>& on_part) const;

 private:
  struct Token {
    std::string_view text;
    int32_t id;
    uint32_t flags;
  };

  [[nodiscard]] const Token* longest_at(std::string_view text) const;

  std::vector<Token> tokens_;          // by text
  std::array<uint32_t, 257> first_{};  // of those that begin with a byte
  std::array<bool, 256> begins_{};     // whether any does
};

}  // namespace faststream
