// SentencePiece models in the terms of compiled tokenizers.
#pragma once

#include <string_view>

#include "text/sentencepiece_model.h"
#include "text/tokenizer_description.h"

namespace faststream {

/// What compile_tokenizer() makes a tokenizer of that gives the ids and the texts of SentencePiece
/// itself (0.1.97 to 0.2.0). `model`: as parse_sentencepiece_model() accepts it. User-defined
/// pieces in brackets, marks of a chat's format in some models, are special tokens besides. Throws
/// Error, starting with `where`, where more pieces begin with others than in any real model.
TokenizerDescription describe_sentencepiece(const SentencePieceModel& model,
                                            std::string_view where);

}  // namespace faststream
