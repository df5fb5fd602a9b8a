// How a row of activations becomes eight bits: both int8 products use it, so that a row's result is
// the same in both.
#pragma once

#include <cmath>

#include "kernels/cuda/types.cuh"

namespace faststream {

/// Symmetric, round to nearest: quantized = value · inverse, value = quantized · scale.
struct RowScale {
  float scale = 0;
  float inverse = 0;

  __device__ int quantize(float value) const {
    return max(-127, min(127, __float2int_rn(value * inverse)));
  }
};

/// The scale of a row, max|value| / 127. Called by all kThreads threads of a block, each with the
/// largest magnitude that it has seen and whether it has seen a NaN. No byte can say NaN or
/// infinity: the scale does.
template <int kThreads>
__device__ RowScale row_scale(float largest, int has_nan) {
  __shared__ float warp_maxima[kThreads / kWarp];
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) warp_maxima[threadIdx.x / kWarp] = largest;
  has_nan = __syncthreads_or(has_nan);
  for (const float other : warp_maxima) largest = fmaxf(largest, other);
  return {.scale = has_nan != 0 ? NAN : largest / 127.0F,
          .inverse = largest > 0 ? 127.0F / largest : 0.0F};
}

}  // namespace faststream
