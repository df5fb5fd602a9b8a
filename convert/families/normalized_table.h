// A table of the checkpoint whose rows the model has normalized.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/checkpoint.h"

namespace faststream::convert {

struct NormalizedTable {
  std::string name;       ///< a tensor's
  std::string norm = {};  ///< a module of weights and biases; empty: rows are what they are
  float eps = 0;
};

/// Its rows [rows, cols] after that layer normalization. Throws Error when a tensor is missing, has
/// another shape, or holds NaN or infinity.
std::vector<float> rows_of(const NormalizedTable& table, int64_t rows, int64_t cols,
                           const Checkpoint& weights);

}  // namespace faststream::convert
