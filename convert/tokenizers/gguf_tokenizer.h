// Tokenizers in the metadata of GGUF files.
#pragma once

#include <optional>
#include <string>

#include "convert/gguf/metadata.h"
#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream::convert {

/// One of the two is there.
struct GgufTokenizer {
  TokenizerConfig config;
  std::string sentencepiece;  ///< a serialized SentencePiece model: "llama" and "t5"
  std::optional<TokenizerDescription> description;  ///< byte-pair encoding and "bert"
};

/// What "tokenizer.ggml.*" says, as llama.cpp understands it: its defaults where a key is missing,
/// and every token ends a text that ends one there. Throws Error, naming the file, when something
/// is missing, contradicts itself, or is a kind of tokenizer that is not supported.
GgufTokenizer tokenizer_from_gguf(const GgufMetadata& metadata);

}  // namespace faststream::convert
