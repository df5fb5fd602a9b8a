// Tokenizers as tokenizer.json describes them, compiled into tables that are used in place. Ids and
// decoded text equal those of Hugging Face's tokenizers 0.23, and of SentencePiece where its model
// is described (text/describe_sentencepiece.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream {

/// The bytes of a model file's tensor "tokenizer". "post_processor" is not
/// looked at: what it does is TokenizerConfig's prefix and suffix. Throws Error, starting with
/// `where`, for a part that is not supported, and for a description that contradicts itself.
std::string compile_tokenizer(const TokenizerDescription& description, std::string_view where);

/// `tables`: what compile_tokenizer() wrote, or any other bytes; they must outlive the tokenizer.
/// Takes a few milliseconds at most, whatever the vocabulary. Throws Error, starting with `where`,
/// when they are damaged or an id of `config` is not in them. `check_interrupted` is called during
/// long encodings, on any thread that encodes.
std::unique_ptr<Tokenizer> make_compiled_tokenizer(std::span<const std::byte> tables,
                                                   const TokenizerConfig& config,
                                                   std::string_view where,
                                                   CheckInterrupted check_interrupted = {});

/// The same with tables of its own.
std::unique_ptr<Tokenizer> make_compiled_tokenizer(std::string tables,
                                                   const TokenizerConfig& config,
                                                   std::string_view where,
                                                   CheckInterrupted check_interrupted = {});

}  // namespace faststream
