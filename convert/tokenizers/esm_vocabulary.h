// ESM's tokenizer: the letters of proteins, in a vocabulary alone.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/source_files.h"
#include "convert/tokenizers/tokenizer_file.h"

namespace faststream::convert {

/// The tokenizer that Transformers makes of a folder's vocab.txt, a token a line: a text is split
/// at tokens, whatever white space is between them; what is none becomes "<unk>" up to the next
/// one. Nothing where there is no such file, or it is another's: it lacks "<cls>", "<eos>" or
/// "<unk>". Throws Error, naming it, when it has a token twice.
std::optional<TokenizerFile> read_esm_vocabulary(const std::filesystem::path& folder,
                                                 SourceFiles& files);

}  // namespace faststream::convert
