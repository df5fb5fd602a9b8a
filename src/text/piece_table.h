// The pieces of a SentencePiece model, as a splitter of text looks them up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "text/prefix_search.h"
#include "text/sentencepiece_model.h"

namespace faststream {

/// Pieces that text can become: normal, user-defined and unused ones. Others (control, byte and
/// unknown ones) are never found by their text.
class PieceTable {
 public:
  static constexpr int32_t kNone = -1;

  /// Which has an unknown piece and, for byte fallback, all byte pieces. `model` must outlive it.
  explicit PieceTable(const SentencePieceModel& model);

  /// The id of the piece with that text, or kNone.
  [[nodiscard]] int32_t find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? kNone : found->second;
  }
  [[nodiscard]] const SentencePieceModel::Piece& piece(int32_t id) const {
    return model_.pieces[static_cast<size_t>(id)];
  }
  /// Those that BPE and the normalizer take before anything else.
  [[nodiscard]] const PrefixSearch& user_defined() const { return user_defined_; }
  /// Those that the unigram algorithm chooses from, normal and user-defined; none for BPE.
  [[nodiscard]] const PrefixSearch& scored() const { return scored_; }

  /// Of the normal pieces' scores.
  [[nodiscard]] float lowest_score() const { return lowest_score_; }
  [[nodiscard]] float highest_score() const { return highest_score_; }

  [[nodiscard]] int32_t unknown() const { return unknown_; }
  [[nodiscard]] int32_t of_byte(unsigned char byte) const { return bytes_[byte]; }
  /// Bytes of the longest piece's text, at least 1.
  [[nodiscard]] size_t longest() const { return longest_; }
  /// Whether the UTF-8 character is a piece by itself, so that it never becomes unknown.
  [[nodiscard]] bool is_known(std::string_view character) const;

  /// Whether any piece has the two UTF-8 characters beside each other. Where none has, no piece of
  /// a text reaches across, and what is before has no influence on what comes after.
  [[nodiscard]] bool can_join(std::string_view left, std::string_view right) const {
    return joins_all_ || joins_.contains(pair_of(left, right));
  }

 private:
  static uint64_t pair_of(std::string_view left, std::string_view right);
  void add_joins(std::string_view text);

  const SentencePieceModel& model_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_set<uint64_t> joins_;
  // BPE takes an unused piece apart as it was put together last, anywhere in the text.
  bool joins_all_ = false;
  PrefixSearch user_defined_;
  PrefixSearch scored_;
  std::array<int32_t, 256> bytes_{};
  int32_t unknown_ = kNone;
  float lowest_score_ = std::numeric_limits<float>::max();
  float highest_score_ = std::numeric_limits<float>::min();  // the library's start, above 0
  size_t longest_ = 1;
};

}  // namespace faststream
