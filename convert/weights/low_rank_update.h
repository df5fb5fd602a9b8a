// Matrices as an adapter changes them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/weights/read_values.h"

namespace faststream::convert {

/// read_block() of a tensor that has an update. Throws Error, naming the adapter's tensor, when
/// finite values become infinite.
void read_updated_block(const Checkpoint& checkpoint, const SourceTensor& tensor,
                        const MatrixBlock& block, std::span<float> out,
                        std::vector<std::byte>& raw);

}  // namespace faststream::convert
