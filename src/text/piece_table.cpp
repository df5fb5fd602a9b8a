#include "text/piece_table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/utf8.h"

namespace faststream {
namespace {

using PieceType = SentencePieceModel::PieceType;

bool is_one_of(PieceType type, std::initializer_list<PieceType> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

PrefixSearch search_for(const SentencePieceModel& model, std::initializer_list<PieceType> types) {
  std::vector<PrefixSearch::Entry> entries;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (is_one_of(piece.type, types)) entries.push_back({piece.text, static_cast<int32_t>(id)});
  }
  return PrefixSearch(std::move(entries));
}

}  // namespace

PieceTable::PieceTable(const SentencePieceModel& model)
    : model_(model),
      user_defined_(search_for(model, {PieceType::user_defined})),
      scored_(model.algorithm == SentencePieceModel::Algorithm::unigram
                  ? search_for(model, {PieceType::normal, PieceType::user_defined})
                  : PrefixSearch({})) {
  ids_.reserve(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& [text, score, type] = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (type == PieceType::unknown) unknown_ = id;
    if (type == PieceType::byte) bytes_[byte_of_piece(model.pieces[i])] = id;
    if (type == PieceType::normal) {
      lowest_score_ = std::min(lowest_score_, score);
      highest_score_ = std::max(highest_score_, score);
    }
    if (type == PieceType::unused && model.algorithm == SentencePieceModel::Algorithm::bpe) {
      joins_all_ = true;
    }
    if (!is_one_of(type, {PieceType::normal, PieceType::user_defined, PieceType::unused})) continue;
    ids_.emplace(text, id);
    longest_ = std::max(longest_, text.size());
    add_joins(text);
  }
}

bool PieceTable::is_known(std::string_view character) const {
  const int32_t id = find(character);
  return id != kNone && piece(id).type != PieceType::unused;
}

uint64_t PieceTable::pair_of(std::string_view left, std::string_view right) {
  uint32_t pair[2] = {};
  std::memcpy(&pair[0], left.data(), left.size());
  std::memcpy(&pair[1], right.data(), right.size());
  return uint64_t{pair[0]} << 32 | pair[1];
}

void PieceTable::add_joins(std::string_view text) {
  std::string_view left;
  while (!text.empty()) {
    const std::string_view right = text.substr(0, static_cast<size_t>(utf8_character(text)));
    if (!left.empty()) joins_.insert(pair_of(left, right));
    left = right;
    text.remove_prefix(right.size());
  }
}

}  // namespace faststream
