// Byte-pair encoding whose merges are ranks of tokens, as tiktoken and tekken have it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizers/pretokenizers.h"
#include "text/tokenizer_description.h"

namespace faststream::convert {

/// A token for templates.
struct SpecialToken {
  int32_t id = 0;
  std::string text;
};

/// The description of a tokenizer that joins, of all neighbours that are a token together, those
/// whose token has the lowest rank; a word that is a token is that token. `tokens`: the bytes of
/// each rank, all different, not empty, 1,024 bytes at most; rank r has the id first_id + r. Every
/// way to make a token of two others becomes a merge, in the order of Transformers'
/// TikTokenConverter. Throws Error, starting with `where`, for other tokens, when a byte has none,
/// and when there are more than 16,777,216 merges.
TokenizerDescription describe_ranked_bpe(const std::vector<std::string>& tokens, int32_t first_id,
                                         const std::vector<SpecialToken>& special_tokens,
                                         const Pretokenizer& pretokenizer, std::string_view where);

}  // namespace faststream::convert
