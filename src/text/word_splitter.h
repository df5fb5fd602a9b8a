// SentencePiece's two algorithms that split text into pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/piece_table.h"

namespace faststream {

/// Splits the words of one text in turn. A word is what lies between two places across which no
/// piece can reach (PieceTable::can_join).
class WordSplitter {
 public:
  virtual ~WordSplitter() = default;

  struct Split {
    uint32_t size;  ///< bytes of the word
    int32_t id;     ///< the piece's, or that of the unknown piece
  };
  /// The longest word that can be split.
  static constexpr size_t kLongestWord = (size_t{1} << 30) - 1;

  /// Appends what `word`, normalized and not empty, is split into. Throws nothing but bad_alloc.
  virtual void split(std::string_view word, std::vector<Split>& splits) = 0;
};

/// Byte-pair encoding (Sennrich et al., arXiv:1508.07909): of all neighbours that together are a
/// piece, the two whose piece scores highest are merged, the leftmost of equals, until none is
/// left. Takes about 16 bytes of memory for each byte of the longest word.
std::unique_ptr<WordSplitter> make_bpe_splitter(const PieceTable& table);

/// The unigram language model (Kudo, arXiv:1804.10959): the pieces whose scores have the largest
/// sum. Takes 12 bytes of memory for each byte of the longest word.
std::unique_ptr<WordSplitter> make_unigram_splitter(const PieceTable& table);

}  // namespace faststream
