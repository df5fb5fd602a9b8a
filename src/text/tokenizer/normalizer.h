// What a tokenizer does to a text before it splits it.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/json.h"
#include "text/tokenizer/added_token_finder.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/pattern.h"

namespace faststream {

/// A stretch of text between added tokens on its way through the normalizers.
struct NormalizedText {
  std::string text;        ///< valid UTF-8; any bytes for a step that takes_bytes()
  bool at_start = true;    ///< its first character comes from the first one of the whole text
  bool continues = false;  ///< it goes on with a text: nothing is put before it or taken from there
  bool own_space = false;  ///< after a special token, and a template's own space begins it
  bool marks = true;       ///< symbols that are special tokens may be in it
};

/// Immutable; any number of threads may use it.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Throws Error when `budget` is spent.
  virtual void normalize(NormalizedText& text, TokenizerBudget& budget) const = 0;
  /// Whether the text may be any bytes, of which it makes valid UTF-8.
  [[nodiscard]] virtual bool takes_bytes() const { return false; }
  /// How many times shorter, in bytes, it can make a text; nothing where there is no limit.
  [[nodiscard]] virtual std::optional<size_t> shrinks_by() const { return std::nullopt; }
};

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

/// Takes a text through all steps. Throws Error when `budget` is spent.
void normalize(const Normalizers& steps, NormalizedText& text, TokenizerBudget& budget);

/// What normalizers need from the tables, which must outlive them.
struct NormalizerTables {
  std::string_view charsmap;              ///< SentencePiece's rules
  const SymbolFinder* symbols = nullptr;  ///< which those rules leave alone; null for none
};

/// The steps of tokenizer.json's "normalizer", or SentencePiece's own, sequences flattened. Throws
/// Error for an unknown one.
Normalizers make_normalizers(const JsonView& normalizer, const NormalizerTables& tables);

/// A pattern of tokenizer.json, {"String": text} or {"Regex": pattern}, which Replace and Split
/// have.
class TextOrPattern {
 public:
  explicit TextOrPattern(const JsonView& description);
  void find_all(std::string_view text, TokenizerBudget& budget,
                const Pattern::OnMatch& on_match) const;
  /// Bytes of the longest match.
  [[nodiscard]] size_t longest() const {
    return pattern_ ? std::numeric_limits<size_t>::max() : text_.size();
  }

 private:
  std::string text_;  // unless there is a pattern
  std::unique_ptr<const Pattern> pattern_;
};

/// Replaces each match in a text. Throws Error when `budget` is spent.
std::string replace_all(std::string_view text, const TextOrPattern& pattern,
                        std::string_view content, TokenizerBudget& budget);

}  // namespace faststream
