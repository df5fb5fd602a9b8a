// How a tokenizer splits a text into the words that its model takes one by one.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "support/json.h"
#include "text/tokenizer/pattern.h"

namespace faststream {

/// A part of a text.
struct Piece {
  std::string_view text;   ///< valid UTF-8, not empty
  bool at_start = false;   ///< it begins where the whole text does
  bool continues = false;  ///< it begins where a text is continued: nothing is put before it
};

using OnPiece = std::function<void(const Piece&)>;

/// Immutable; any number of threads may use it.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Calls on_piece for the parts of a piece in order, none of them empty. Throws Error when
  /// `budget` is spent.
  virtual void split(const Piece& piece, TokenizerBudget& budget,
                     const OnPiece& on_piece) const = 0;
  /// Whether every byte of a piece is in one of its parts.
  [[nodiscard]] virtual bool keeps_all_bytes() const { return true; }
};

using PreTokenizers = std::vector<std::unique_ptr<const PreTokenizer>>;

/// The steps of tokenizer.json's "pre_tokenizer", sequences flattened. Where `keep_bytes`, the last
/// one, ByteLevel, leaves bytes as they are. Throws Error for an unknown one.
PreTokenizers make_pre_tokenizers(const JsonView& pre_tokenizer, bool keep_bytes);

/// Whether the last step is ByteLevel.
bool ends_in_byte_level(const JsonView& pre_tokenizer);

}  // namespace faststream
