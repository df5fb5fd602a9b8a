// Llama models in GGUF files.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/gguf/metadata.h"
#include "convert/source_model.h"

namespace faststream {

/// The hyperparameters that the metadata of the architecture "llama" gives. `weights` holds what
/// they depend on beside: rows of the vocabulary, an output matrix of its own, biases, and the
/// factors of rotary frequencies ("rope_freqs.weight"). Throws Error, starting with the file's
/// name, when something is missing, out of range or not supported.
ModelConfig llama_config_from_gguf(const GgufMetadata& metadata, const Checkpoint& weights);

/// Opens a GGUF file, or the first part of one. Throws Error, naming the file, when it is unsound,
/// of another architecture than llama or not supported. `tokenizer` as for open_source_model().
SourceModel open_gguf_llama(const std::filesystem::path& path,
                            const std::optional<std::filesystem::path>& tokenizer);

}  // namespace faststream
