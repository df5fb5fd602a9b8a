// How SentencePiece rewrites a text before it splits it: normalization rules, spaces as "▁", a
// space before the text. The result equals that of the library's normalizer.cc (0.1.97 to 0.2.0).
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "text/prefix_search.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer/charsmap.h"

namespace faststream {

class SentencePieceNormalizer {
 public:
  /// Both must outlive it.
  SentencePieceNormalizer(const SentencePieceModel& model, const PrefixSearch& user_defined)
      : model_(model), user_defined_(user_defined), rules_(model.charsmap) {}

  /// Whether the text gets a space of its own, and loses spaces at its ends and doubled ones.
  struct SpaceRules {
    bool add_dummy = true;
    bool remove_extra = true;
  };

  /// Calls put() with each UTF-8 character of the normalized `text`, which may be any bytes, until
  /// that returns false. Needs no memory that grows with the text.
  void normalize(std::string_view text, SpaceRules rules,
                 const std::function<bool(std::string_view character)>& put) const;

 private:
  struct Step {
    std::string_view output;  // what `consumed` bytes of the text become
    size_t consumed = 0;
  };
  [[nodiscard]] Step next(std::string_view text) const;

  const SentencePieceModel& model_;
  const PrefixSearch& user_defined_;
  Charsmap rules_;
};

}  // namespace faststream
