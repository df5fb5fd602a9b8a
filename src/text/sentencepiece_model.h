// A SentencePiece model as data: the part of its protocol buffer that encoding and decoding need.
//
// The library trusts what it loads: damaged normalization rules make it read out of bounds. So a
// model is parsed and checked here. The converter, which has the library as its judge, gives it
// what serialize() writes, and makes tables of the model (describe_sentencepiece.h) for the runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_description.h"

namespace faststream {

/// Names and default values as in sentencepiece_model.proto (SentencePiece 0.1.97); numbers of
/// enums are those of the format.
struct SentencePieceModel {
  enum class PieceType : uint32_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6,
  };
  enum class Algorithm : uint32_t { unigram = 1, bpe = 2 };

  struct Piece {
    std::string text;  ///< UTF-8; a space is "▁" (U+2581)
    float score = 0;
    PieceType type = PieceType::normal;
  };

  std::vector<Piece> pieces;  ///< the index is the token id
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  ///< what the unknown piece decodes to
  int32_t unk_id = 0;                              ///< this and the next: -1 for none
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  int32_t pad_id = -1;

  std::string normalizer_name;
  std::string charsmap;  ///< compiled normalization rules, or empty for none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Reads a serialized ModelProto. Throws Error, starting with `where`, when it is none, is damaged
/// (two pieces with the same text, normalization rules that leave their table), or needs what this
/// program lacks (a denormalizer, word and character models). What it accepts the library loads.
SentencePieceModel parse_sentencepiece_model(std::span<const std::byte> bytes,
                                             std::string_view where);

/// `text` with "▁" for each space, as a piece is written.
std::string with_space_symbols(std::string_view text);

/// The byte that a piece of that type stands for: 10 for "<0x0A>".
unsigned char byte_of_piece(const SentencePieceModel::Piece& piece);

/// Writes a ModelProto that SentencePiece loads.
std::string serialize_sentencepiece_model(const SentencePieceModel& model);

}  // namespace faststream
