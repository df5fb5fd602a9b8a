#include "text/describe_sentencepiece.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/utf8.h"
#include "text/prefix_search.h"

namespace faststream {
namespace {

using nlohmann::json;
using PieceType = SentencePieceModel::PieceType;

bool is_in_brackets(std::string_view text) {
  return text.size() > 2 && ((text.front() == '<' && text.back() == '>') ||
                             (text.front() == '[' && text.back() == ']'));
}

TokenRole role_of(PieceType type) {
  switch (type) {
    case PieceType::unknown:
      return TokenRole::unknown;
    case PieceType::byte:
      return TokenRole::byte;
    case PieceType::unused:
      return TokenRole::unused;
    default:
      return TokenRole::text;
  }
}

void add_vocabulary(const SentencePieceModel& model, TokenizerDescription& description) {
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const auto id = static_cast<int32_t>(description.vocabulary.size());
    description.vocabulary.push_back(piece.text);
    description.roles.push_back(role_of(piece.type));
    if (piece.type == PieceType::control) {
      description.added_tokens.push_back({.id = id, .text = piece.text, .special = true});
    } else if (piece.type == PieceType::user_defined) {
      description.added_tokens.push_back({.id = id,
                                          .text = piece.text,
                                          .special = is_in_brackets(piece.text),
                                          .in_model = true,
                                          .symbol = true});
    }
  }
}

json normalizer_of(const SentencePieceModel& model) {
  return {{"type", "SentencePiece"},
          {"add_dummy_prefix", model.add_dummy_prefix},
          {"remove_extra_whitespaces", model.remove_extra_whitespaces},
          {"escape_whitespaces", model.escape_whitespaces},
          {"treat_whitespace_as_suffix", model.whitespace_as_suffix}};
}

json decoder_of(const SentencePieceModel& model) {
  return {{"type", "SentencePiece"},
          {"unknown", model.unknown_surface},
          {"drop_spaces", model.remove_extra_whitespaces ? "all"
                          : model.add_dummy_prefix       ? "one"
                                                         : "none"}};
}

/// The merges of byte-pair encoding: any two symbols that together are a piece, whatever it was
/// trained on. A symbol is such a piece itself or a character, be it a piece or not. User-defined
/// pieces are never merged.
class MergeFinder {
 public:
  MergeFinder(const SentencePieceModel& model, TokenizerDescription& description,
              std::string_view where)
      : model_(model), out_(description), where_(where), pieces_(merged_pieces(model)) {
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePieceModel::Piece& piece = model.pieces[id];
      if (is_merged(piece)) {
        symbols_.emplace(piece.text, static_cast<int32_t>(id));
        ranks_.emplace(piece.score, 0);
      } else if (piece.type == PieceType::user_defined) {
        symbols_.emplace(piece.text, kNone);
      }
    }
    int32_t rank = 0;
    for (auto& [score, its_rank] : ranks_) its_rank = rank++;
  }

  void find() {
    for (const SentencePieceModel::Piece& piece : model_.pieces) {
      if (!is_merged(piece)) continue;
      const auto first = static_cast<size_t>(utf8_character(piece.text));
      add(piece, first);  // which may be no piece
      pieces_.search(piece.text, [&](size_t length, int32_t) {
        if (length > first) add(piece, length);
      });
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr size_t kMostTried = size_t{1} << 22;  // Llama 2's 32,000 pieces ask for 2^17

  static bool is_merged(const SentencePieceModel::Piece& piece) {
    return piece.type == PieceType::normal || piece.type == PieceType::unused;
  }
  static PrefixSearch merged_pieces(const SentencePieceModel& model) {
    std::vector<PrefixSearch::Entry> entries;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePieceModel::Piece& piece = model.pieces[id];
      if (is_merged(piece)) entries.push_back({piece.text, static_cast<int32_t>(id)});
    }
    return PrefixSearch(std::move(entries));
  }

  // The merge that makes `piece` of its first `length` bytes and the others, if that can be.
  void add(const SentencePieceModel::Piece& piece, size_t length) {
    if (++n_tried_ > kMostTried) {
      throw Error(std::string(where_) +
                  ": the SentencePiece model has too many pieces that begin with others; use the "
                  "model's original tokenizer");
    }
    const std::string_view left = std::string_view(piece.text).substr(0, length);
    const std::string_view right = std::string_view(piece.text).substr(length);
    if (!can_be_symbol(left) || !can_be_symbol(right)) return;
    out_.merges.push_back({symbol(left), symbol(right)});
    out_.merge_ranks.push_back(ranks_.at(piece.score));
  }

  [[nodiscard]] bool can_be_symbol(std::string_view text) const {
    if (text.empty()) return false;
    const auto found = symbols_.find(text);
    if (found != symbols_.end()) return found->second != kNone;
    return static_cast<size_t>(utf8_character(text)) == text.size();
  }
  int32_t symbol(std::string_view text) {
    const auto [found, is_part] =
        symbols_.emplace(text, static_cast<int32_t>(out_.vocabulary.size()));
    if (is_part) {
      out_.vocabulary.emplace_back(text);
      ++out_.n_parts;
    }
    return found->second;
  }

  const SentencePieceModel& model_;
  TokenizerDescription& out_;
  std::string_view where_;
  PrefixSearch pieces_;
  std::unordered_map<std::string_view, int32_t> symbols_;  // kNone: never merged
  std::map<float, int32_t, std::greater<>> ranks_;         // by score
  size_t n_tried_ = 0;
};

void add_bpe(const SentencePieceModel& model, TokenizerDescription& description,
             std::string_view where) {
  MergeFinder(model, description, where).find();
  const bool has_unused = std::ranges::find(model.pieces, PieceType::unused,
                                            &SentencePieceModel::Piece::type) != model.pieces.end();
  description.pipeline["model"].update({{"type", "BPE"},
                                        {"fuse_unk", true},
                                        {"parts_at_last", has_unused || description.n_parts > 0}});
}

// In float and double just where the library's unigram_model.cc has them.
void add_unigram(const SentencePieceModel& model, TokenizerDescription& description) {
  constexpr float kUnknownPenalty = 10;
  float lowest = std::numeric_limits<float>::max();
  float highest = std::numeric_limits<float>::min();  // the library's start, above 0
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != PieceType::normal) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    description.scores.push_back(piece.type == PieceType::user_defined
                                     ? static_cast<float>(piece.text.size()) * highest - 0.1
                                     : piece.score);
  }
  description.pipeline["model"].update({{"type", "Unigram"},
                                        {"single_precision", true},
                                        {"finds_unknown", false},
                                        {"unk_score", lowest - kUnknownPenalty}});
}

}  // namespace

TokenizerDescription describe_sentencepiece(const SentencePieceModel& model,
                                            std::string_view where) {
  TokenizerDescription description;
  add_vocabulary(model, description);
  const auto unknown =
      std::ranges::find(model.pieces, PieceType::unknown, &SentencePieceModel::Piece::type);
  description.pipeline = {
      {"normalizer", normalizer_of(model)},
      {"decoder", decoder_of(model)},
      {"model",
       {{"unk_id", unknown - model.pieces.begin()}, {"byte_fallback", model.byte_fallback}}}};
  description.charsmap = model.charsmap;
  if (model.algorithm == SentencePieceModel::Algorithm::bpe) {
    add_bpe(model, description, where);
  } else {
    add_unigram(model, description);
  }
  return description;
}

}  // namespace faststream
