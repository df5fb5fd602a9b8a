// Files that hold a tokenizer and nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "convert/source_files.h"
#include "text/tokenizer_description.h"

namespace faststream {

/// One of the two is there.
struct TokenizerFile {
  std::string sentencepiece;  ///< a serialized SentencePiece model, as it was read
  std::optional<TokenizerDescription> description;
};

/// Reads a tokenizer with `files`: of llama2.c by the name *.bin (`vocab`: its tokens, which the
/// file does not say), else by its contents of tiktoken, Mistral (tekken.json) or SentencePiece.
/// Throws Error, naming the file, when it is none of them.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path, int64_t vocab,
                                  SourceFiles& files);

}  // namespace faststream
