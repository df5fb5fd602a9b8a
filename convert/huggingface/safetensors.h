// Weights in the safetensors format (https://github.com/huggingface/safetensors).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"

namespace faststream::convert {

/// The tensors that a file's JSON header describes. `data_start` is the file offset of the byte
/// buffer that follows the header, `file_size` the file's size. Throws Error, starting with
/// `where`, when the header is no sound JSON, or a tensor has an unknown type, has a size that is
/// not its shape's, reaches past the end or overlaps another.
std::vector<SourceTensor> parse_safetensors_header(std::string_view json, uint64_t data_start,
                                                   uint64_t file_size, std::string_view where);

/// Adds a file's tensors to a checkpoint, by their names after `prefix`. Throws Error, naming the
/// file, when it is missing or unsound.
void add_safetensors_file(Checkpoint& checkpoint, const std::filesystem::path& path,
                          SourceFiles& files, const std::string& prefix = "");

}  // namespace faststream::convert
