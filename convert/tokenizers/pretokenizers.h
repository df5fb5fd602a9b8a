// How byte-pair encoders cut a text into words before they merge, by the names that formats without
// patterns of their own give them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

namespace faststream::convert {

struct Pretokenizer {
  enum class Spelling {
    byte_level,  ///< tokens spell bytes as GPT-2 does
    text,        ///< tokens are text, "▁" for a space, "<0x0A>" for a byte
    words,       ///< tokens are text; white space only separates words
  };

  /// Each cuts what those before it left whole; a match and what is between matches are words
  /// (tokenizer.json's Split with the behaviour "Isolated"). Oniguruma's syntax.
  std::span<const std::string_view> patterns;
  Spelling spelling = Spelling::byte_level;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever merges say
  bool add_bos = false;        ///< unless the file says otherwise
  bool add_separator = false;  ///< likewise, between the texts of a pair
};

/// The names of tokenizer.ggml.pre (llama.cpp's llama-vocab.cpp); null for an unknown one.
const Pretokenizer* find_pretokenizer(std::string_view name);

/// The parts of a tokenizer.json ("normalizer", "pre_tokenizer", "decoder", "model") for byte-pair
/// encoding with such a pre-tokenizer.
nlohmann::json bpe_pipeline(const Pretokenizer& pretokenizer);

}  // namespace faststream::convert
