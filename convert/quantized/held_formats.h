// Matrices that are quantized already, and formats of model files that hold their values exactly.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/source_model.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/weight_format.h"

namespace faststream::convert {

/// The format that holds all values of a tensor, by what the checkpoint says of it; nothing where
/// it is not quantized or no format does. Throws Error when a file cannot be read.
std::optional<WeightFormat> held_format(const Checkpoint& checkpoint, const SourceTensor& tensor);

/// Whether a part is rows of `width` values as they are in the checkpoint, in whatever order.
bool is_rows_alone(const TensorPart& part, int64_t width);

/// Scales of a tensor that fp8 or nf4 holds: of each group of columns of a row.
void read_held_scales(const Checkpoint& checkpoint, const SourceTensor& tensor, WeightFormat format,
                      int64_t row, std::vector<float>& scales, std::vector<std::byte>& raw);

/// What of a checkpoint that is quantized already keeps its bits.
struct KeptBits {
  std::map<TensorId, WeightFormat> held;  ///< matrices, and the formats that hold them
  size_t decoded = 0;                     ///< quantized ones that no format holds
};

/// Gives the matrices of `config`, whose formats are those of floats, the formats that hold what
/// they are made of.
KeptBits keep_bits(const SourceModel& source, ModelConfig& config);

}  // namespace faststream::convert
