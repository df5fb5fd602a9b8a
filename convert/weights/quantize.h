// Rows of weights in fewer bits than they have.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "support/weight_format.h"

namespace faststream::convert {

/// What rounding costs a row, or a matrix.
struct RowError {
  double squared_error = 0;  ///< Σ (weight - what is stored)²
  double squared_norm = 0;   ///< Σ weight²
};

struct QuantizedRow : RowError {
  float scale = 0;  ///< weight ≈ scale · quantized
};

/// INT8, symmetric quantization of one output channel: scale = max|row| / 127, `out` = row / scale
/// rounded to nearest, from -127 to 127. Each weight comes back within half a scale. A row of zeros
/// (or of values so small that the scale underflows) has scale 0 and all zeros. Where a value is
/// not finite the scale is not either, and nothing is written. out.size() == row.size().
QuantizedRow quantize_row(std::span<const float> row, std::span<int8_t> out);

/// INT4: of the levels that a group can have (Int4Levels), beside the scale with which no group has
/// too few, those of the least squared error among some that hold its range or most of it. The
/// values are finite; `out` and `scales` have the bytes of support/weight_format.h.
RowError quantize_row_int4(std::span<const float> row, std::byte* out, std::byte* scales);

/// A row in a format that is_float() not. Nothing, with nothing written, where a value is not
/// finite.
std::optional<RowError> quantize(WeightFormat format, std::span<const float> row, std::byte* out,
                                 std::byte* scales);

}  // namespace faststream::convert
