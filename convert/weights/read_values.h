// Values of a checkpoint's tensors as floats, however they are stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "convert/checkpoint.h"

namespace faststream::convert {

/// A part of a tensor as one matrix (SourceTensor::columns()).
struct MatrixBlock {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
};

/// out [rows, columns] = the values of the block. Any thread may call it; `raw` is scratch memory.
/// Throws Error when a file cannot be read, or when a tensor says that its columns belong to blocks
/// that it has not.
void read_block(const Checkpoint& checkpoint, const SourceTensor& tensor, const MatrixBlock& block,
                std::span<float> out, std::vector<std::byte>& raw);

/// The same of out.size() values of the tensor, from `first` on.
void read_values(const Checkpoint& checkpoint, const SourceTensor& tensor, int64_t first,
                 std::span<float> out, std::vector<std::byte>& raw);

/// Whether two tensors of a checkpoint have the same values; those that are stored in different
/// ways count as different.
bool same_values(const Checkpoint& checkpoint, const SourceTensor& a, const SourceTensor& b);

}  // namespace faststream::convert
