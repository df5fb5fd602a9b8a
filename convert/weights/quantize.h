// INT8 weights.
#pragma once

#include <cstdint>
#include <span>

namespace faststream::convert {

struct QuantizedRow {
  float scale = 0;           ///< weight ≈ scale · quantized
  double squared_error = 0;  ///< Σ (weight - scale · quantized)²
  double squared_norm = 0;   ///< Σ weight²
};

/// Symmetric quantization of one output channel: scale = max|row| / 127, `out` = row / scale
/// rounded to nearest, from -127 to 127. Each weight comes back within half a scale. A row of zeros
/// (or of values so small that the scale underflows) has scale 0 and all zeros. Where a value is
/// not finite the scale is not either, and nothing is written. out.size() == row.size().
QuantizedRow quantize_row(std::span<const float> row, std::span<int8_t> out);

}  // namespace faststream::convert
