// Tokenizers of subword-nmt (arXiv:1508.07909), whose vocabulary marks pieces after which a word
// goes on: CTRL's and Blenderbot Small's.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/source_files.h"
#include "convert/tokenizers/tokenizer_file.h"

namespace faststream::convert {

/// The tokenizer that Transformers makes of a folder's vocab.json and merges.txt; nothing where
/// there are none, or they are another's: pieces end in "@@" where a word goes on, and merges in
/// "</w>" where it ends. A vocabulary with "__start__" and "__end__" is Blenderbot Small's, which
/// knows words in lower case, apart from punctuation. Throws Error, naming the file, when one is
/// unsound.
std::optional<TokenizerFile> read_subword_nmt(const std::filesystem::path& folder,
                                              SourceFiles& files);

}  // namespace faststream::convert
