// Weights in PyTorch's own formats: what torch.save() writes of a state dictionary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/pytorch/zip_archive.h"

namespace faststream::convert {

/// The tensors of a file of `size` bytes, all of which lie in it: of an archive, as since PyTorch
/// 1.6, or of pickles with the elements behind them, as before. Some may share their elements.
/// Throws Error, starting with `where`, when the file is damaged, too large a program, or asks
/// Python for anything but tensors.
std::vector<SourceTensor> parse_pytorch_file(const ReadBytes& read, uint64_t size,
                                             std::string_view where);

/// Adds a file's tensors to a checkpoint, by their names after `prefix`. Throws as
/// parse_pytorch_file() does.
void add_pytorch_file(Checkpoint& checkpoint, const std::filesystem::path& path, SourceFiles& files,
                      const std::string& prefix = "");

}  // namespace faststream::convert
