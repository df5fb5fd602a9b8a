// Activations beside i8 weights.
#pragma once

#include "backend/tensor.h"
#include "kernels/cuda/queue.h"

namespace faststream {

/// Rows of x (any float type) as integers from -127 to 127, symmetric, round to nearest: value =
/// integer · scales[row], scales[row] = max|x| / 127. `integers` has x's rows and columns without
/// gaps, as i8, or as bf16, which holds them exactly. The same in both, so that a row's product
/// does not depend on which kernel makes it.
void quantize_rows(const Matrix& x, const Matrix& integers, float* scales, const Queue& queue);

}  // namespace faststream
