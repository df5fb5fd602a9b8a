// Mistral's tokenizer files: tekken.json (https://github.com/mistralai/mistral-common).
#pragma once

#include <string_view>

#include "text/tokenizer_description.h"

namespace faststream::convert {

/// Whether a file begins as JSON does.
bool is_tekken(std::string_view bytes);

/// Special tokens come first, as many as "config" says, those without a name as "<SPECIAL_20>"; of
/// the ranked tokens so many follow as the vocabulary has room for. Throws Error, starting with
/// `where`, when the file is damaged or of another kind.
TokenizerDescription parse_tekken(std::string_view bytes, std::string_view where);

}  // namespace faststream::convert
