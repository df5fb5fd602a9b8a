// Files that hold a tokenizer and nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "convert/source_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream::convert {

/// A SentencePiece model or a description.
struct TokenizerFile {
  std::filesystem::path path;
  std::string sentencepiece = {};  ///< a serialized SentencePiece model, as it was read
  std::optional<TokenizerDescription> description = {};
  std::optional<TokenizerConfig> config = {};  ///< of a tokenizer.json, which says it
};

/// The tokenizers of a checkpoint.
struct TokenizerFiles {
  TokenizerFile tokenizer = {};
  std::optional<TokenizerFile> encoder = {};  ///< where sources have a vocabulary of their own
};

/// Reads a tokenizer with `files`: of llama2.c by the name *.bin (`vocab`: its tokens, which the
/// file does not say), else by its contents a tokenizer.json, or one of tiktoken, Mistral
/// (tekken.json) or SentencePiece. Throws Error, naming the file, when it is none of them.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path, int64_t vocab,
                                  SourceFiles& files);

}  // namespace faststream::convert
