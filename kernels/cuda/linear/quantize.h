// Activations beside i8 weights.
#pragma once

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"

namespace faststream {

/// Whether quantize_rows() takes the input as it is: ready, or f32 rows whose norm gives bf16, of
/// at most 16,384 elements, a multiple of eight, or of 64 to be rotated, that begin at multiples of
/// 16 bytes, as the norm's do.
bool can_quantize(const Input& input, bool rotated);

/// Rows [first, first + count) of an input, with its norm, if it has one, still to be applied.
Input row_range(const Input& input, int64_t first, int64_t count);

/// Rows (of any float type; normalized, and rounded to bf16, where that is still to be done;
/// rotated, as support/hadamard.h says, in bf16 and rounded to it, where that is asked for) as
/// integers from -127 to 127, symmetric, round to nearest: value = integer · scales[row],
/// scales[row] = max|x| / 127. `integers` has x's rows and columns without gaps, as i8, or as bf16,
/// which holds them exactly. The same in both, so that a row's product does not depend on which
/// kernel makes it.
void quantize_rows(const Input& input, bool rotated, const Matrix& integers, float* scales,
                   const Queue& queue);

/// x as a product in float arithmetic takes it: as it is, or rotated beside a weight that is, in
/// f32 and so many bytes of `memory`.
Matrix rows_for(const Matrix& x, const Weight& weight, DeviceBuffer& memory, const Queue& queue);
size_t rows_for_bytes(int64_t rows, int64_t columns);

}  // namespace faststream
