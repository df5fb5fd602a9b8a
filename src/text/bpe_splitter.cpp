#include <algorithm>
#include <unordered_map>

#include "support/utf8.h"
#include "text/word_splitter.h"

namespace faststream {
namespace {

using PieceType = SentencePieceModel::PieceType;

/// The symbols of a word, from characters at first to pieces at last, as one number a byte: the
/// first and the last byte of a symbol hold its size (boundary tags), the first also that a symbol
/// begins there.
class Symbols {
 public:
  void reset(size_t word_size) { cells_.assign(word_size, 0); }

  void place(uint32_t at, uint32_t size, bool frozen) {
    const uint32_t tag = size | (frozen ? kFrozen : 0);
    cells_[at + size - 1] = tag;
    cells_[at] = tag | kBegins;
  }
  /// Makes the symbol at `at` and the next one a single one.
  void merge(uint32_t at) {
    const uint32_t left = size(at);
    const uint32_t right = size(at + left);
    cells_[at + left - 1] = cells_[at + left] = 0;
    place(at, left + right, false);
  }

  [[nodiscard]] uint32_t end() const { return static_cast<uint32_t>(cells_.size()); }
  [[nodiscard]] bool begins(uint32_t at) const { return (cells_[at] & kBegins) != 0; }
  [[nodiscard]] bool frozen(uint32_t at) const { return (cells_[at] & kFrozen) != 0; }
  [[nodiscard]] uint32_t size(uint32_t at) const { return cells_[at] & kSize; }
  /// Where the symbol before the one at `at` begins; `at` is not 0.
  [[nodiscard]] uint32_t previous(uint32_t at) const { return at - (cells_[at - 1] & kSize); }

 private:
  static constexpr uint32_t kBegins = 1U << 31;
  static constexpr uint32_t kFrozen = 1U << 30;  // a user-defined piece, never merged
  static constexpr uint32_t kSize = kFrozen - 1;
  static_assert(WordSplitter::kLongestWord <= kSize);

  std::vector<uint32_t> cells_;
};

/// A merge to be made when its turn comes, unless one of the two symbols is another by then.
struct Merge {
  float score;
  uint32_t at;    // where the left symbol begins
  uint32_t size;  // of both

  bool operator<(const Merge& other) const {  // later in turn
    return score < other.score || (score == other.score && at > other.at);
  }
};

class BpeSplitter final : public WordSplitter {
 public:
  explicit BpeSplitter(const PieceTable& table) : table_(table) {}

  void split(std::string_view word, std::vector<Split>& splits) override {
    word_ = word;
    place_characters();
    for (uint32_t at = symbols_.size(0); at < symbols_.end(); at += symbols_.size(at)) {
      plan_merge(symbols_.previous(at));
    }
    while (!merges_.empty()) {
      std::pop_heap(merges_.begin(), merges_.end());
      const Merge merge = merges_.back();
      merges_.pop_back();
      if (is_current(merge)) make(merge);
    }
    for (uint32_t at = 0; at < symbols_.end(); at += symbols_.size(at)) {
      add(word.substr(at, symbols_.size(at)), splits);
    }
  }

 private:
  void place_characters() {
    symbols_.reset(word_.size());
    for (size_t at = 0; at < word_.size();) {
      const std::string_view rest = word_.substr(at);
      const size_t user_defined = table_.user_defined().longest(rest);
      const size_t size =
          user_defined > 0 ? user_defined : static_cast<size_t>(utf8_character(rest));
      symbols_.place(static_cast<uint32_t>(at), static_cast<uint32_t>(size), user_defined > 0);
      at += size;
    }
  }

  // Of the symbol at `at` and the next one, if there is one and together they are a piece.
  void plan_merge(uint32_t at) {
    const uint32_t left = symbols_.size(at);
    const uint32_t next = at + left;
    if (next == symbols_.end() || symbols_.frozen(at) || symbols_.frozen(next)) return;
    const uint32_t size = left + symbols_.size(next);
    const int32_t id = table_.find(word_.substr(at, size));
    if (id == PieceTable::kNone) return;
    const SentencePieceModel::Piece& piece = table_.piece(id);
    if (piece.type == PieceType::unused) left_parts_[id] = left;
    merges_.push_back({piece.score, at, size});
    std::push_heap(merges_.begin(), merges_.end());
  }

  // Symbols only grow, so they are the same if their sizes still add up.
  [[nodiscard]] bool is_current(const Merge& merge) const {
    if (!symbols_.begins(merge.at)) return false;
    const uint32_t next = merge.at + symbols_.size(merge.at);
    return next < symbols_.end() && next + symbols_.size(next) == merge.at + merge.size;
  }

  void make(const Merge& merge) {
    symbols_.merge(merge.at);
    if (merge.at > 0) plan_merge(symbols_.previous(merge.at));
    plan_merge(merge.at);
  }

  // Unused pieces fall into the parts that they were planned from last.
  void add(std::string_view text, std::vector<Split>& splits) const {
    const int32_t id = table_.find(text);
    const auto left = left_parts_.find(id);
    if (left != left_parts_.end()) {
      add(text.substr(0, left->second), splits);
      add(text.substr(left->second), splits);
      return;
    }
    splits.push_back(
        {static_cast<uint32_t>(text.size()), id == PieceTable::kNone ? table_.unknown() : id});
  }

  const PieceTable& table_;
  std::string_view word_;
  Symbols symbols_;
  std::vector<Merge> merges_;                         // a heap
  std::unordered_map<int32_t, uint32_t> left_parts_;  // of unused pieces, in bytes
};

}  // namespace

std::unique_ptr<WordSplitter> make_bpe_splitter(const PieceTable& table) {
  return std::make_unique<BpeSplitter>(table);
}

}  // namespace faststream
