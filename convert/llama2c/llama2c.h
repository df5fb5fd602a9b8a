// Checkpoints of llama2.c (https://github.com/karpathy/llama2.c), legacy header.
#pragma once

#include <filesystem>
#include <optional>

#include "convert/source_model.h"

namespace faststream::convert {

/// Opens a .bin that llama2.c's export.py wrote as version 0: seven int32 (dim, hidden_dim,
/// n_layers, n_heads, n_kv_heads, vocab_size, seq_len), then float32 tensors; vocab_size is
/// negative when the output matrix is separate. Without `tokenizer`, the only tok*.bin beside it is
/// taken. Throws Error, naming the file, when it is something else or does not have the size its
/// header asks for.
SourceModel open_llama2c(const std::filesystem::path& path,
                         const std::optional<std::filesystem::path>& tokenizer);

}  // namespace faststream::convert
