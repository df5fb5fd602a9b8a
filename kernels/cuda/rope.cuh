// What happens to a head of queries or keys before its score, by a warp: the same bits where it is
// an operation of its own (rope.cu) and where it is the beginning of an attention (step_kernel/).
#pragma once

#include "backend/backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

// A head has few turns of each loop, which are not unrolled: code that runs once a layer takes
// longer than they do.

/// Element i of a head becomes (element - mean) · factor · weight[i].
struct HeadNorm {
  float mean = 0;
  float factor = 1;
  const float* weight = nullptr;  ///< null: no norm

  template <typename T>
  [[nodiscard]] __device__ float apply(const T* head, int i) const {
    const float value = to_float(head[i]);
    return weight != nullptr ? __fmul_rn(__fmul_rn(value - mean, factor), weight[i]) : value;
  }
};

template <typename T>
__device__ HeadNorm measure_head(const HeadTransform& transform, const T* head, int dim,
                                 const float* weight) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  HeadNorm norm;
  norm.weight = weight;
  if (transform.norm == NormKind::layer) {
    float sum = 0;
#pragma unroll 1
    for (int i = lane; i < dim; i += kWarp) sum += to_float(head[i]);
    norm.mean = warp_sum(sum) / static_cast<float>(dim);
  }
  float squares = 0;
#pragma unroll 1
  for (int i = lane; i < dim; i += kWarp) {
    const float value = to_float(head[i]) - norm.mean;
    squares = __fmaf_rn(value, value, squares);
  }
  norm.factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + transform.eps);
  return norm;
}

/// Calls store(i, value) for each element of a head, normalized by `weight` [dim] if the transform
/// has a norm, its first `rotated` elements rotated by cos_sin. Only lanes of the same warp read
/// what store() writes to the head itself.
template <typename T, typename Store>
__device__ void transform_head(const T* head, int dim, const HeadTransform& transform,
                               const float* weight, const float* cos_sin, int rotated,
                               const Store& store) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  HeadNorm norm;
  if (transform.norm != NormKind::none) norm = measure_head(transform, head, dim, weight);
  const int half = rotated / 2;
#pragma unroll 1
  for (int i = lane; i < half; i += kWarp) {
    const float first = norm.apply(head, i);
    const float second = norm.apply(head, i + half);
    const float cosine = cos_sin[2 * i];
    const float sine = cos_sin[2 * i + 1];
    store(i, __fmaf_rn(first, cosine, -__fmul_rn(second, sine)));
    store(i + half, __fmaf_rn(second, cosine, __fmul_rn(first, sine)));
  }
#pragma unroll 1
  for (int i = 2 * half + lane; i < dim; i += kWarp) store(i, norm.apply(head, i));
}

/// What queries at a position are multiplied by after rotation.
__device__ inline float query_factor(const HeadTransform& transform, int position) {
  if (transform.query_scaling == 0) return 1;
  const auto steps = static_cast<float>(position / transform.query_scaling_from);
  return 1 + transform.query_scaling * logf(1.0F + steps);
}

}  // namespace faststream
