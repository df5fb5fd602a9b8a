// Tokenizers whose ids are not those of their SentencePiece model but of a vocabulary beside it:
// Marian's, M2M-100's; and T5's and PLBart's, whose vocabularies have more than the model's.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/source_files.h"
#include "convert/tokenizers/tokenizer_file.h"

namespace faststream::convert {

/// The tokenizer of a folder without a tokenizer.json, as one SentencePiece model by the ids of
///
///   source.spm, vocab.json                   Marian: what source.spm lacks is for answers alone
///   sentencepiece.bpe.model, vocab.json      M2M-100: and its languages after them
///   sentencepiece.bpe.model                  PLBart, which tokenizer_config.json's class says:
///                                            fairseq's ids, and its languages after them
///   spiece.model                             T5: and its extra ids
///
/// with what it puts before and after a text; nothing where the folder has none of them. Where
/// tokenizer_config.json has "separate_vocabs", Marian's source.spm and vocab.json are the
/// encoder's tokenizer, and the decoder's is target.spm by the ids of target_vocab.json. Throws
/// Error, naming the file, when one is unsound.
std::optional<TokenizerFiles> read_separate_vocabulary(const std::filesystem::path& folder,
                                                       SourceFiles& files);

}  // namespace faststream::convert
