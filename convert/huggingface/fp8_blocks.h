// Matrices of 8-bit numbers with a factor for each block, as DeepSeek V3 and others publish them.
#pragma once

#include <cstdint>

#include "convert/checkpoint.h"
#include "support/json.h"

namespace faststream::convert {

/// Whether config.json says that matrices are such, and in blocks of how many rows and columns.
bool has_fp8_blocks(const JsonView& config);

/// Joins matrices X of E4M3 and X_scale_inv, the factors of their blocks, to matrices X that can be
/// converted, if config.json has them. Throws Error when a matrix has not a factor for each block.
void join_fp8_blocks(const JsonView& config, Checkpoint& checkpoint);

}  // namespace faststream::convert
