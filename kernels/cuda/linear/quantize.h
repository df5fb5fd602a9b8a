// Activations beside i8 weights.
#pragma once

#include "backend/backend.h"
#include "kernels/cuda/queue.h"

namespace faststream {

/// Whether quantize_rows() takes the input as it is: ready, or f32 rows whose norm gives bf16, of
/// at most 16,384 elements, a multiple of eight, that begin at multiples of 16 bytes, as the norm's
/// do.
bool can_quantize(const Input& input);

/// Rows [first, first + count) of an input, with its norm, if it has one, still to be applied.
Input row_range(const Input& input, int64_t first, int64_t count);

/// Rows (of any float type; normalized, and rounded to bf16, where that is still to be done) as
/// integers from -127 to 127, symmetric, round to nearest: value = integer · scales[row],
/// scales[row] = max|x| / 127. `integers` has x's rows and columns without gaps, as i8, or as bf16,
/// which holds them exactly. The same in both, so that a row's product does not depend on which
/// kernel makes it.
void quantize_rows(const Input& input, const Matrix& integers, float* scales, const Queue& queue);

}  // namespace faststream
