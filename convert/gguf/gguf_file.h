// Weights in the GGUF format (https://github.com/ggml-org/ggml, docs/gguf.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/gguf/metadata.h"

namespace faststream::convert {

/// What stands before the tensors' bytes of a GGUF file.
struct GgufHeader {
  GgufMetadata metadata;
  std::vector<SourceTensor> tensors;  ///< offsets in the file; shapes with rows first
};

/// Reads the header of a file of `file_size` bytes through `read`, which fills a span with the
/// bytes at an offset. Versions 2 and 3, little-endian. Time and memory are in proportion to the
/// header's bytes, of which there may be 128 MB. Throws Error, starting with `where`, when it is
/// unsound, or a tensor has a type that cannot be converted, reaches past the end, overlaps another
/// or is not aligned.
GgufHeader parse_gguf(const std::function<void(uint64_t, std::span<std::byte>)>& read,
                      uint64_t file_size, std::string_view where);

/// Whether a file begins as every GGUF file does.
bool is_gguf(const InputFile& file);

/// A GGUF file with all its parts.
struct GgufFile {
  GgufMetadata metadata;
  Checkpoint weights;
};

/// Opens a file or, by its first part ("NAME-00001-of-00003.gguf"), a file in parts. Throws Error,
/// naming the file, when a part is missing or unsound.
GgufFile open_gguf_file(const std::filesystem::path& path, SourceFiles& files);

}  // namespace faststream::convert
