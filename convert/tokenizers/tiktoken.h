// Tokenizer files of tiktoken (https://github.com/openai/tiktoken): a line for each token, its
// bytes in Base64, a space and its rank.
#pragma once

#include <string_view>

#include "text/tokenizer_description.h"

namespace faststream::convert {

/// Whether a file begins as one does.
bool is_tiktoken(std::string_view bytes);

/// Such a file holds neither patterns nor special tokens; models are known by the number of their
/// tokens: Llama 3's tokenizer.model (with the special tokens of Llama 3.1 and 3.2) and Qwen's
/// qwen.tiktoken. Throws Error, starting with `where`, when it is damaged or of another model.
TokenizerDescription parse_tiktoken(std::string_view bytes, std::string_view where);

}  // namespace faststream::convert
