// Text to the ids of a SentencePiece model's pieces.
//
// The library's own encoder takes some 230 bytes of memory for each byte of text. This one gives
// the same ids and works on one word at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/piece_table.h"
#include "text/sentencepiece_model.h"
#include "text/sentencepiece_normalizer.h"
#include "text/tokenizer/budget.h"

namespace faststream {

/// Immutable once made; any number of threads may use it.
class SentencePieceEncoder {
 public:
  /// `model`, which SentencePiece itself loads, must outlive it.
  explicit SentencePieceEncoder(const SentencePieceModel& model)
      : model_(model), table_(model), normalizer_(model, table_.user_defined()) {}
  SentencePieceEncoder(const SentencePieceEncoder&) = delete;
  SentencePieceEncoder& operator=(const SentencePieceEncoder&) = delete;

  using SpaceRules = SentencePieceNormalizer::SpaceRules;

  /// What SentencePiece's Encode() gives for any bytes, with the model's `rules` or others; control
  /// pieces never come up. Memory: the ids, and 20 bytes for each byte of the longest normalized
  /// word. A word ends where no piece reaches on; only odd texts (a letter that is repeated without
  /// end) have long ones. Throws Error for a word of a gigabyte, and when the normalization rules
  /// make too much of the text. `check_interrupted` is called now and then.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, SpaceRules rules,
                                            const CheckInterrupted& check_interrupted = {}) const;

  /// At most as many as encode(text, rules) gives, whatever the rules. Takes a fraction of its
  /// time. Counts no further once there are more than `enough`.
  [[nodiscard]] int64_t min_tokens(std::string_view text, int64_t enough) const;

 private:
  template <typename Use>
  void for_each_word(std::string_view text, SpaceRules rules,
                     const CheckInterrupted& check_interrupted, Use&& use) const;

  const SentencePieceModel& model_;
  PieceTable table_;
  SentencePieceNormalizer normalizer_;
};

}  // namespace faststream
