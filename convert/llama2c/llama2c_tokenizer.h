// The tokenizer of llama2.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace faststream::convert {

/// Builds the serialized SentencePiece model that a llama2.c tokenizer file was exported from: BPE,
/// byte fallback, a dummy space before the text, <unk>, <s>, </s> as ids 0, 1, 2.
///
/// `tok_bin`: the file, as export() of karpathy/llama2.c's tokenizer.py writes it: int32
/// max_token_length, then for each token float32 score, int32 length and the bytes, little-endian.
/// `vocab_size`: tokens in the file, which does not say so itself; the checkpoint does.
///
/// Encoding with the result equals encode() of llama2.c's run.c for valid UTF-8 without U+2581 and
/// NUL. (Invalid bytes become U+FFFD and U+2581 a space, as for every SentencePiece model; run.c
/// takes their bytes.)
///
/// Throws Error, starting with `where`, when the file is truncated, too long, not a tokenizer with
/// byte tokens, or does not fit vocab_size.
std::string sentencepiece_from_llama2c(std::span<const std::byte> tok_bin, int32_t vocab_size,
                                       std::string_view where);

}  // namespace faststream::convert
