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

class InputMetric;

/// INT4. A row of multiples of one number, from -4 to 11 times, comes back exactly. Else, where
/// nothing is known of what the row is multiplied with (a null metric), each group has
/// of the levels that it can have (Int4Levels) those of the least squared error among some that
/// hold its range or most of it, beside the best of some scales. Else what the product loses is as
/// little as some searches find (convert/weights/input_metric.h). The values are finite; `out` and
/// `scales` have the bytes of support/weight_format.h. The errors are the weights' in both cases.
RowError quantize_row_int4(std::span<const float> row, const InputMetric* metric, std::byte* out,
                           std::byte* scales);

/// A format that is_coded(). Groups that the format holds exactly come back exactly, so that what
/// was decoded is found again; of fp8 and nf4 such are sought with `known` scales, of each group of
/// columns, and with those that the largest magnitude could have. Else:
/// fp8: scale = max|group| / 448, codes to nearest even;
/// mxfp4: of the two powers of two that the largest magnitude suggests the one of less squared
/// error; nf4: scale = max|group|, the nearest code, of two the lower one;
/// int4_g32 and its like: the range and zero point of the least squared error among some, the scale
/// a bf16. The values are finite.
RowError quantize_row_coded(WeightFormat format, std::span<const float> row,
                            std::span<const float> known, std::byte* out);

/// A row in a format that is_float() not; int4 has a use for the metric, fp8 and nf4 have one for
/// known scales. Nothing, with nothing written, where a value is not finite.
std::optional<RowError> quantize(WeightFormat format, std::span<const float> row,
                                 const InputMetric* metric, std::span<const float> known,
                                 std::byte* out, std::byte* scales);

}  // namespace faststream::convert
