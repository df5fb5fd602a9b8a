// The models of tokenizer.json: from a word to token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "support/json.h"
#include "text/tokenizer/added_token_finder.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/tables.h"

namespace faststream {

/// Encodes the words of one text in turn; keeps memory from one to the next.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  /// The longest word that can be encoded, in bytes.
  static constexpr size_t kLongestWord = (size_t{1} << 30) - 1;

  /// Appends the ids of `word`, not empty and at most kLongestWord long. Throws Error for a word
  /// that the model cannot express because it has no unknown token, and when the budget is spent.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) = 0;
};

/// Immutable; any number of threads may use it.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// `marks`: words may become special tokens that are symbols. `budget`, the text's, must outlive
  /// the encoder, which looks at it in long words.
  [[nodiscard]] virtual std::unique_ptr<WordEncoder> start(bool marks,
                                                           TokenizerBudget& budget) const = 0;
  /// Whether no byte of a word can vanish in an unknown token, so that a word of n bytes makes at
  /// least n / longest_token tokens.
  [[nodiscard]] virtual bool keeps_all_bytes() const = 0;
};

/// `model`: tokenizer.json's "model" without vocabulary and merges. `tables`, and `symbols`, which
/// BPE takes as they are, must outlive it. Where `byte_level`, words are bytes, and so are the
/// texts of tokens. Throws Error for what is unknown or missing.
std::unique_ptr<const TokenModel> make_token_model(const JsonView& model,
                                                   const TokenizerTables& tables,
                                                   const SymbolFinder& symbols, bool byte_level);

std::unique_ptr<const TokenModel> make_bpe_model(const JsonView& model,
                                                 const TokenizerTables& tables,
                                                 const SymbolFinder& symbols, bool byte_level);
std::unique_ptr<const TokenModel> make_unigram_model(const JsonView& model,
                                                     const TokenizerTables& tables);
std::unique_ptr<const TokenModel> make_word_piece_model(const JsonView& model,
                                                        const TokenizerTables& tables);
std::unique_ptr<const TokenModel> make_word_level_model(const JsonView& model,
                                                        const TokenizerTables& tables);

/// The tokens that stand for bytes: those that are said to, else those spelled <0x00> to <0xFF>;
/// TokenizerTables::kNone where one is missing.
std::vector<int32_t> find_byte_tokens(const TokenizerTables& tables);

}  // namespace faststream
