// Models in GGUF files.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/source_model.h"

namespace faststream::convert {

/// Opens a GGUF file, or the first part of one. Throws Error, naming the file, when it is unsound
/// or not supported. `tokenizer` as for open_source_model().
SourceModel open_gguf_model(const std::filesystem::path& path,
                            const std::optional<std::filesystem::path>& tokenizer);

}  // namespace faststream::convert
