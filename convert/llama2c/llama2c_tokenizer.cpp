#include "convert/llama2c/llama2c_tokenizer.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "support/error.h"
#include "support/utf8.h"
#include "text/sentencepiece_model.h"

namespace faststream::convert {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr int32_t kFirstByte = 3;
constexpr int32_t kFirstNormal = kFirstByte + 256;

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what +
              "; use the tokenizer .bin that belongs to the checkpoint.");
}

class Reader {
 public:
  Reader(std::span<const std::byte> rest, std::string_view where) : rest_(rest), where_(where) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string text(size_t size) {
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  [[nodiscard]] size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> take(size_t size) {
    if (size > rest_.size()) {
      refuse(where_, "the llama2.c tokenizer ends too early for its checkpoint's vocabulary");
    }
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::span<const std::byte> rest_;
  std::string_view where_;
};

std::string byte_piece(int32_t byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte) & 0xFFU);
  return name;
}

/// Token `id` as a piece. The first three are written as text ("\n<s>\n") and are known by their
/// ids.
SentencePieceModel::Piece make_piece(int32_t id, float score, const std::string& text,
                                     std::string_view where) {
  if (id == 0) return {"<unk>", score, PieceType::unknown};
  if (id == 1) return {"<s>", score, PieceType::control};
  if (id == 2) return {"</s>", score, PieceType::control};
  if (id < kFirstNormal) {
    const std::string expected = byte_piece(id - kFirstByte);
    if (text != expected) {
      refuse(where, "token " + std::to_string(id) +
                        " of the llama2.c tokenizer is not the byte \"" + expected + "\"");
    }
    return {expected, score, PieceType::byte};
  }
  // The export wrote "▁" as a space.
  return {with_space_symbols(text), score, PieceType::normal};
}

}  // namespace

std::string sentencepiece_from_llama2c(std::span<const std::byte> tok_bin, int32_t vocab_size,
                                       std::string_view where) {
  if (vocab_size < kFirstNormal) {
    refuse(where, "a llama2.c tokenizer has at least " + std::to_string(kFirstNormal) +
                      " tokens, but the checkpoint's vocabulary is " + std::to_string(vocab_size));
  }
  SentencePieceModel model;
  model.algorithm = SentencePieceModel::Algorithm::bpe;
  model.byte_fallback = true;
  model.normalizer_name = "identity";
  model.remove_extra_whitespaces = false;

  Reader reader(tok_bin, where);
  const auto longest = reader.number<int32_t>();
  std::unordered_map<std::string, int32_t> known;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string name = "token " + std::to_string(id) + " of the llama2.c tokenizer ";
    const auto score = reader.number<float>();
    const auto length = reader.number<int32_t>();
    if (!std::isfinite(score)) refuse(where, name + "has a score that is not a number");
    if (length < 1 || length > longest) {
      refuse(where, name + "has a length of " + std::to_string(length) + " instead of 1 to " +
                        std::to_string(longest));
    }
    const std::string text = reader.text(static_cast<size_t>(length));
    if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) {
      refuse(where, name + "is not UTF-8 text");
    }
    model.pieces.push_back(make_piece(id, score, text, where));
    const auto [other, is_new] = known.emplace(model.pieces.back().text, id);
    if (!is_new) refuse(where, name + "repeats token " + std::to_string(other->second));
  }
  if (reader.left() != 0) {
    refuse(where, "the llama2.c tokenizer has " + std::to_string(reader.left()) +
                      " bytes after the last of the checkpoint's " + std::to_string(vocab_size) +
                      " tokens");
  }
  return serialize_sentencepiece_model(model);
}

}  // namespace faststream::convert
