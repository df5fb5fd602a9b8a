#include "text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "support/error.h"
#include "support/utf8.h"
#include "text/tokenizer/charsmap.h"

namespace faststream {
namespace {

using PieceType = SentencePieceModel::PieceType;

// Fields of sentencepiece_model.proto.
enum ModelField : uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };
enum PieceField : uint32_t { kText = 1, kScore = 2, kType = 3 };
enum TrainerField : uint32_t {
  kModelType = 3,
  kWhitespaceAsSuffix = 24,
  kByteFallback = 35,
  kUnkId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43,
  kUnkSurface = 44,
};
enum NormalizerField : uint32_t {
  kName = 1,
  kCharsmap = 2,
  kDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5,
};

// protobuf.dev/programming-guides/encoding
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what + ".");
}

[[noreturn]] void refuse_damaged(std::string_view where) {
  refuse(where, "is not a SentencePiece model or is damaged; use the model's original tokenizer");
}

struct Field {
  uint32_t number = 0;
  uint32_t type = kVarint;
  uint64_t integer = 0;    // of kVarint, kFixed32 and kFixed64
  std::string_view bytes;  // of kBytes
};

/// Reads the fields of one message in turn.
class FieldReader {
 public:
  FieldReader(std::string_view bytes, std::string_view where) : rest_(bytes), where_(where) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    if (tag > std::numeric_limits<uint32_t>::max() || (tag >> 3) == 0) refuse_damaged(where_);
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = static_cast<uint32_t>(tag & 7);
    switch (field.type) {
      case kVarint:
        field.integer = varint();
        break;
      case kFixed64:
        field.integer = fixed(8);
        break;
      case kFixed32:
        field.integer = fixed(4);
        break;
      case kBytes:
        field.bytes = take(varint());
        break;
      default:
        refuse_damaged(where_);
    }
    return true;
  }

  std::string_view bytes(const Field& field) const {
    if (field.type != kBytes) refuse_damaged(where_);
    return field.bytes;
  }
  uint64_t integer(const Field& field) const {
    if (field.type != kVarint) refuse_damaged(where_);
    return field.integer;
  }
  bool boolean(const Field& field) const { return integer(field) != 0; }
  int32_t id(const Field& field) const { return static_cast<int32_t>(integer(field)); }
  float number(const Field& field) const {
    if (field.type != kFixed32) refuse_damaged(where_);
    return std::bit_cast<float>(static_cast<uint32_t>(field.integer));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    refuse_damaged(where_);
  }

  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  }

  std::string_view take(uint64_t size) {
    if (size > rest_.size()) refuse_damaged(where_);
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  std::string_view where_;
};

SentencePieceModel::Piece parse_piece(std::string_view bytes, size_t id, std::string_view where) {
  SentencePieceModel::Piece piece;
  FieldReader reader(bytes, where);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kText:
        piece.text = reader.bytes(field);
        break;
      case kScore:
        piece.score = reader.number(field);
        break;
      case kType:
        piece.type = static_cast<PieceType>(reader.integer(field));
        break;
      default:
        break;
    }
  }
  const std::string name = "piece " + std::to_string(id) + " of the SentencePiece model ";
  if (piece.text.empty()) refuse(where, name + "is empty; the file is damaged");
  if (!is_valid_utf8(piece.text) || piece.text.find('\0') != std::string::npos) {
    refuse(where, name + "is not UTF-8 text; the file is damaged");
  }
  if (!std::isfinite(piece.score)) {
    refuse(where, name + "has a score that is not a number; the file is damaged");
  }
  if (piece.type < PieceType::normal || piece.type > PieceType::byte) {
    refuse(where, name + "has an unknown type; the file is damaged or newer than this program");
  }
  return piece;
}

void parse_trainer(std::string_view bytes, SentencePieceModel& model, std::string_view where) {
  FieldReader reader(bytes, where);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kModelType:
        model.algorithm = static_cast<SentencePieceModel::Algorithm>(reader.integer(field));
        if (model.algorithm != SentencePieceModel::Algorithm::unigram &&
            model.algorithm != SentencePieceModel::Algorithm::bpe) {
          refuse(where, "the SentencePiece model is neither BPE nor unigram, which are supported");
        }
        break;
      case kWhitespaceAsSuffix:
        model.whitespace_as_suffix = reader.boolean(field);
        break;
      case kByteFallback:
        model.byte_fallback = reader.boolean(field);
        break;
      case kUnkId:
        model.unk_id = reader.id(field);
        break;
      case kBosId:
        model.bos_id = reader.id(field);
        break;
      case kEosId:
        model.eos_id = reader.id(field);
        break;
      case kPadId:
        model.pad_id = reader.id(field);
        break;
      case kUnkSurface:
        // The library passes the surface on as a C string.
        model.unknown_surface = reader.bytes(field);
        model.unknown_surface.resize(std::strlen(model.unknown_surface.c_str()));
        if (!is_valid_utf8(model.unknown_surface)) refuse_damaged(where);
        break;
      default:
        break;
    }
  }
}

void parse_normalizer(std::string_view bytes, SentencePieceModel& model, std::string_view where) {
  FieldReader reader(bytes, where);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kName:
        model.normalizer_name = reader.bytes(field);
        break;
      case kCharsmap:
        model.charsmap = reader.bytes(field);
        break;
      case kDummyPrefix:
        model.add_dummy_prefix = reader.boolean(field);
        break;
      case kRemoveExtraWhitespaces:
        model.remove_extra_whitespaces = reader.boolean(field);
        break;
      case kEscapeWhitespaces:
        model.escape_whitespaces = reader.boolean(field);
        break;
      default:
        break;
    }
  }
}

void refuse_denormalizer(std::string_view bytes, std::string_view where) {
  FieldReader reader(bytes, where);
  for (Field field; reader.next(field);) {
    if (field.number == kCharsmap && !reader.bytes(field).empty()) {
      refuse(where, "the SentencePiece model has denormalization rules, which are not supported");
    }
  }
}

std::string byte_spelling(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

void check_repetitions(const SentencePieceModel& model, std::string_view where) {
  std::unordered_map<std::string_view, size_t> known;
  known.reserve(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto [other, is_new] = known.emplace(model.pieces[id].text, id);
    if (is_new) continue;
    refuse(where, "piece " + std::to_string(id) + " of the SentencePiece model repeats piece " +
                      std::to_string(other->second) + "; the file is damaged");
  }
}

// What the library asks of them: one unknown piece, and with byte fallback one of each byte.
void check_types(const SentencePieceModel& model, std::string_view where) {
  size_t n_unknown = 0;
  size_t n_bytes = 0;  // different ones: no piece is there twice
  bool has_text = false;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (piece.type == PieceType::unknown) ++n_unknown;
    has_text = has_text || piece.type == PieceType::normal ||
               piece.type == PieceType::user_defined || piece.type == PieceType::unused;
    if (piece.type != PieceType::byte) continue;
    ++n_bytes;
    if (piece.text != byte_spelling(byte_of_piece(piece))) {
      refuse(where, "piece " + std::to_string(id) +
                        " of the SentencePiece model is that of a byte and is not spelled so; the "
                        "file is damaged");
    }
  }
  constexpr size_t kBytes = 256;
  if (n_unknown != 1) {
    refuse(where, "the SentencePiece model has " + std::to_string(n_unknown) +
                      " unknown pieces, where there must be one; the file is damaged");
  }
  if (n_bytes != (model.byte_fallback ? kBytes : 0)) {
    refuse(where, "the SentencePiece model has the pieces of " + std::to_string(n_bytes) +
                      " bytes, where " + (model.byte_fallback ? "256" : "none") +
                      " must be; the file is damaged");
  }
  if (!has_text) refuse(where, "the SentencePiece model has no piece of a text; it is damaged");
}

/// The library finds user-defined symbols with a buffer of 64 matches and reads beyond it.
void check_user_defined(const SentencePieceModel& model, std::string_view where) {
  constexpr size_t kMostNested = 64;
  std::vector<std::string_view> symbols;
  for (const auto& piece : model.pieces) {
    if (piece.type == PieceType::user_defined) symbols.push_back(piece.text);
  }
  std::sort(symbols.begin(), symbols.end());
  std::vector<std::string_view> prefixes;  // each begins with the one before
  for (const std::string_view symbol : symbols) {
    while (!prefixes.empty() && !symbol.starts_with(prefixes.back())) prefixes.pop_back();
    prefixes.push_back(symbol);
    if (prefixes.size() > kMostNested) {
      refuse(where, "the SentencePiece model nests user-defined symbols too deeply; it is damaged");
    }
  }
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7FU) | 0x80U);
  out += static_cast<char>(value);
}

void put_integer(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | kVarint);
  put_varint(out, value);
}

void put_id(std::string& out, uint32_t field, int32_t id) {
  put_integer(out, field, static_cast<uint64_t>(static_cast<int64_t>(id)));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3 | kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_float(std::string& out, uint32_t field, float value) {
  put_varint(out, field << 3 | kFixed32);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::span<const std::byte> bytes,
                                             std::string_view where) {
  SentencePieceModel model;
  FieldReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kPieces:
        model.pieces.push_back(parse_piece(reader.bytes(field), model.pieces.size(), where));
        break;
      case kTrainer:
        parse_trainer(reader.bytes(field), model, where);
        break;
      case kNormalizer:
        parse_normalizer(reader.bytes(field), model, where);
        break;
      case kDenormalizer:
        refuse_denormalizer(reader.bytes(field), where);
        break;
      default:
        break;
    }
  }
  if (model.pieces.empty()) refuse_damaged(where);
  if (model.pieces.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    refuse(where, "the SentencePiece model has more than 2147483647 pieces");
  }
  if (!Charsmap::is_sound(model.charsmap)) {
    refuse(where, "the SentencePiece model's normalization rules are damaged");
  }
  check_repetitions(model, where);
  check_types(model, where);
  check_user_defined(model, where);
  return model;
}

std::string with_space_symbols(std::string_view text) {
  std::string piece;
  for (const char c : text) {
    if (c == ' ') {
      piece += kSpaceSymbol;
    } else {
      piece += c;
    }
  }
  return piece;
}

unsigned char byte_of_piece(const SentencePieceModel::Piece& piece) {
  unsigned char byte = 0;
  const size_t digits = std::min(piece.text.size(), std::string_view("<0x").size());
  std::from_chars(piece.text.data() + digits, piece.text.data() + piece.text.size(), byte, 16);
  return byte;
}

std::string serialize_sentencepiece_model(const SentencePieceModel& model) {
  std::string out;
  for (const auto& piece : model.pieces) {
    std::string message;
    put_bytes(message, kText, piece.text);
    put_float(message, kScore, piece.score);
    put_integer(message, kType, static_cast<uint32_t>(piece.type));
    put_bytes(out, kPieces, message);
  }
  std::string trainer;
  put_integer(trainer, kModelType, static_cast<uint32_t>(model.algorithm));
  put_integer(trainer, kWhitespaceAsSuffix, model.whitespace_as_suffix ? 1 : 0);
  put_integer(trainer, kByteFallback, model.byte_fallback ? 1 : 0);
  put_id(trainer, kUnkId, model.unk_id);
  put_id(trainer, kBosId, model.bos_id);
  put_id(trainer, kEosId, model.eos_id);
  put_id(trainer, kPadId, model.pad_id);
  put_bytes(trainer, kUnkSurface, model.unknown_surface);
  put_bytes(out, kTrainer, trainer);

  std::string normalizer;
  put_bytes(normalizer, kName, model.normalizer_name);
  put_bytes(normalizer, kCharsmap, model.charsmap);
  put_integer(normalizer, kDummyPrefix, model.add_dummy_prefix ? 1 : 0);
  put_integer(normalizer, kRemoveExtraWhitespaces, model.remove_extra_whitespaces ? 1 : 0);
  put_integer(normalizer, kEscapeWhitespaces, model.escape_whitespaces ? 1 : 0);
  put_bytes(out, kNormalizer, normalizer);
  return out;
}

}  // namespace faststream
