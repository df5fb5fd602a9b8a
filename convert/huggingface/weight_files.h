// The files with the weights of a Hugging Face folder.
#pragma once

#include <filesystem>
#include <string>

#include "convert/checkpoint.h"

namespace faststream::convert {

/// Adds the tensors of model.safetensors, or the shards of model.safetensors.index.json, or all
/// *.safetensors of a folder, or pytorch_model.bin, or the shards of pytorch_model.bin.index.json,
/// in this order of preference, by their names after `prefix`, to a checkpoint, with `files`.
/// Throws Error, naming the file, when one is missing or unsound.
void add_weight_files(const std::filesystem::path& folder, SourceFiles& files,
                      const std::string& prefix, Checkpoint& checkpoint);
/// The same of a checkpoint that is the folder's.
Checkpoint open_weight_files(const std::filesystem::path& folder, SourceFiles& files);

/// Adds the tensors of a folder's model.safetensors or pytorch_model.bin to a checkpoint, by their
/// names after `prefix`. Throws likewise.
void add_weight_file(Checkpoint& checkpoint, const std::filesystem::path& folder,
                     SourceFiles& files, const std::string& prefix);

}  // namespace faststream::convert
