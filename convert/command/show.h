// What is in a model file.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace faststream::convert {

/// Prints hyperparameters, tokenizer, other members of the header and a table of all tensors.
/// Throws Error when `path` is no sound model file.
void show_model_file(const std::filesystem::path& path, std::ostream& out);

/// Checks that the file holds every tensor of its model in the right type and shape, every byte of
/// it, and that this version can read its tokenizers and settings, and says so on `out`. Throws
/// Error naming what is wrong.
void verify_model_file(const std::filesystem::path& path, std::ostream& out);

}  // namespace faststream::convert
