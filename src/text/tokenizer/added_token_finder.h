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
    symbols,             ///< those that are found as a text is split; the others are as_written
    plain_symbols,       ///< of these the ones that are not special
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

  /// Whether any token looks at what is around it, in texts that must be UTF-8 then.
  [[nodiscard]] bool looks_around() const;

  /// Calls on_part for all parts of a text, which cover it, as Hugging Face's library finds
  /// them: at each place the longest token, from left to right.
  void split(std::string_view text, const Allowed& allowed,
             const std::function<void(const Part&)>& on_part) const;

  struct Found {
    size_t size = 0;  ///< 0 for none
    int32_t id = TokenizerTables::kNone;
  };
  /// The longest token that any bytes begin with.
  [[nodiscard]] Found longest(std::string_view text) const {
    const Token* token = text.empty() ? nullptr : longest_at(text);
    return token == nullptr ? Found() : Found{.size = token->text.size(), .id = token->id};
  }

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

/// Tokens that a text is never split within: the normalizer leaves them as they are written.
class SymbolFinder {
 public:
  /// `tables` must outlive it.
  explicit SymbolFinder(const TokenizerTables& tables)
      : all_(tables, AddedTokenFinder::Which::symbols),
        plain_(tables, AddedTokenFinder::Which::plain_symbols) {}

  /// The longest one that `text` begins with. `marks`: special ones count.
  [[nodiscard]] AddedTokenFinder::Found find(std::string_view text, bool marks) const {
    return (marks ? all_ : plain_).longest(text);
  }

 private:
  AddedTokenFinder all_;
  AddedTokenFinder plain_;
};

}  // namespace faststream
