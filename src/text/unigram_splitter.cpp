#include <algorithm>

#include "support/utf8.h"
#include "text/word_splitter.h"

namespace faststream {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr float kUnknownPenalty = 10.0F;  // the library's

/// Viterbi's algorithm. Scores are added up over the whole text, in float or double just where the
/// library's unigram_model.cc does: rounding decides between splits that are nearly as good.
class UnigramSplitter final : public WordSplitter {
 public:
  explicit UnigramSplitter(const PieceTable& table) : table_(table) {}

  void split(std::string_view word, std::vector<Split>& splits) override {
    best_.assign(word.size() + 1, {});
    best_[0].score = score_before_;
    for (size_t at = 0; at < word.size();) {
      const std::string_view rest = word.substr(at);
      const auto character = static_cast<size_t>(utf8_character(rest));
      bool is_known = false;
      table_.scored().search(rest, [&](size_t size, int32_t id) {
        reach(at, size, score(id, size) + best_[at].score, id);
        is_known = is_known || size == character;
      });
      if (!is_known) {
        const float sum = table_.lowest_score() - kUnknownPenalty + best_[at].score;
        reach(at, character, sum, table_.unknown());
      }
      at += character;
    }
    score_before_ = best_.back().score;

    const size_t first = splits.size();
    for (size_t end = word.size(); end > 0; end -= best_[end].size) {
      splits.push_back({best_[end].size, best_[end].id});
    }
    std::reverse(splits.begin() + static_cast<std::ptrdiff_t>(first), splits.end());
  }

 private:
  /// The best split of what ends at some byte of the word.
  struct Best {
    float score = 0;    // of all up to here
    uint32_t size = 0;  // of the last piece; 0: nothing ends here yet
    int32_t id = PieceTable::kNone;
  };

  [[nodiscard]] double score(int32_t id, size_t size) const {
    const SentencePieceModel::Piece& piece = table_.piece(id);
    if (piece.type != PieceType::user_defined) return piece.score;
    return static_cast<float>(size) * table_.highest_score() - 0.1;
  }

  void reach(size_t at, size_t size, double sum, int32_t id) {
    Best& best = best_[at + size];
    if (best.size > 0 && !(sum > best.score)) return;  // NaN never wins
    best = {static_cast<float>(sum), static_cast<uint32_t>(size), id};
  }

  const PieceTable& table_;
  std::vector<Best> best_;
  float score_before_ = 0;  // of the words before
};

}  // namespace

std::unique_ptr<WordSplitter> make_unigram_splitter(const PieceTable& table) {
  return std::make_unique<UnigramSplitter>(table);
}

}  // namespace faststream
