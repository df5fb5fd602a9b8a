// Tokenizers whose ids are not those of their SentencePiece model but of a vocabulary beside it:
// Marian's, M2M-100's; and T5's, whose vocabulary goes on after the model's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "convert/source_files.h"
#include "convert/tokenizers/tokenizer_file.h"

namespace faststream {

/// The tokenizer of a folder without a tokenizer.json, as one SentencePiece model by the ids of
///
///   source.spm, vocab.json                   Marian: what source.spm lacks is for answers alone
///   sentencepiece.bpe.model, vocab.json      M2M-100: and its languages after them
///   spiece.model                             T5: and its extra ids
///
/// with what it puts before and after a text; nothing where the folder has none of them. vocab: the
/// model's. Throws Error, naming the file, when one is unsound.
std::optional<TokenizerFile> read_separate_vocabulary(const std::filesystem::path& folder,
                                                      int64_t vocab, SourceFiles& files);

}  // namespace faststream
