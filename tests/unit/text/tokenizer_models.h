// Tokenizers for tests: small ones made on the spot, and those that stand beside the checkout.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/describe_sentencepiece.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace faststream {

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A file in the folder of third-party models, which may not be there.
inline std::filesystem::path shared_file(const std::string& name) {
  const char* shared = std::getenv("FASTSTREAM_SHARED");
  return std::filesystem::path(shared == nullptr ? "no-shared-folder" : shared) / name;
}

/// The bytes of such a file; nothing where it is not there.
inline std::optional<std::string> read_shared(const std::string& name) {
  std::ifstream file(shared_file(name), std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// A model file's tensor of a SentencePiece model.
inline std::string compile_sentencepiece(const SentencePieceModel& model,
                                         std::string_view where = "test.model") {
  return compile_tokenizer(describe_sentencepiece(model, where), where);
}

/// The tokenizer of a serialized SentencePiece model, as a conversion makes it.
inline std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    std::span<const std::byte> model, const TokenizerConfig& config, std::string_view where,
    CheckInterrupted check_interrupted = {}) {
  return make_compiled_tokenizer(
      compile_sentencepiece(parse_sentencepiece_model(model, where), where), config, where,
      std::move(check_interrupted));
}

inline std::string byte_name(int byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte) & 0xFFU);
  return name;
}

/// BPE with <unk>, <s>, </s>, bytes from id 3 on if `byte_fallback`, then letters and a few merges;
/// `_` in a text stands for SentencePiece's space symbol.
inline SentencePieceModel small_model(bool byte_fallback) {
  using Type = SentencePieceModel::PieceType;
  SentencePieceModel model;
  model.algorithm = SentencePieceModel::Algorithm::bpe;
  model.byte_fallback = byte_fallback;
  model.remove_extra_whitespaces = false;
  model.pieces = {
      {"<unk>", 0, Type::unknown}, {"<s>", 0, Type::control}, {"</s>", 0, Type::control}};
  if (byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      model.pieces.push_back({byte_name(byte), 0, Type::byte});
    }
  }
  float score = 0;
  for (std::string_view text : {"_a", "he", "_the", "_t", "ll", "o_", "__", "hell", "_", "a", "b",
                                "e", "h", "l", "o", "t", "\xC3\xA9"}) {
    std::string piece;
    for (const char c : text) piece += c == '_' ? std::string("\xE2\x96\x81") : std::string(1, c);
    model.pieces.push_back({piece, score, Type::normal});
    score -= 1;
  }
  return model;
}

}  // namespace faststream
