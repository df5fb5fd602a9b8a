// SentencePiece itself, as the judge of what this program makes of its models.
#pragma once

#include <string_view>

#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace faststream::convert {

/// Has the library load `model` (not its file, which it would trust), and compares what it makes of
/// a few hundred texts (of the model's pieces, of characters of all kinds, of bytes that are none)
/// and of their tokens with what `tokenizer`, made of the same model, does. Throws Error, starting
/// with `where`, where they differ or the library refuses the model.
void compare_with_sentencepiece(const SentencePieceModel& model, const Tokenizer& tokenizer,
                                std::string_view where);

}  // namespace faststream::convert
