// What happens to a head of queries or keys before its score, by a warp: the same bits where it is
// an operation of its own (rope.cu) and where it is the beginning of an attention (step_kernel/).
#pragma once

#include "backend/backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

// A head has few turns of each loop, which are not unrolled: code that runs once a layer takes
// longer than they do.

/// A norm's weights and biases of one head, [dim] each.
struct HeadWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;  ///< null: none
};

/// Those of head `head` of all that begin there; biases may be null.
inline __device__ HeadWeights weights_of_head(const float* weight, const float* bias, int head,
                                              int dim) {
  const int64_t first = int64_t{head} * dim;
  return {weight + first, bias != nullptr ? bias + first : nullptr};
}

/// Element i of a head becomes (element - mean) · factor · weight[i] + bias[i].
struct HeadNorm {
  float mean = 0;
  float factor = 1;
  HeadWeights weights;  ///< without weight: no norm

  [[nodiscard]] __device__ float apply(float value, int i) const {
    if (weights.weight == nullptr) return value;
    return apply(value, weights.weight[i], weights.bias != nullptr ? weights.bias[i] : 0);
  }
  /// With the weight and the bias of its element, where there is a norm.
  [[nodiscard]] __device__ float apply(float value, float weight, float bias) const {
    const float normed = __fmul_rn(__fmul_rn(value - mean, factor), weight);
    return weights.bias != nullptr ? __fadd_rn(normed, bias) : normed;
  }
};

/// for_each(use) calls use(i, value) for the lane's elements of the head: pairs, in turn with the
/// other lanes.
template <typename ForEach>
__device__ HeadNorm measure_head(const HeadTransform& transform, int dim,
                                 const HeadWeights& weights, const ForEach& for_each) {
  HeadNorm norm;
  norm.weights = weights;
  if (transform.norm == NormKind::layer) {
    float sum = 0;
    for_each([&](int /*i*/, float value) { sum += value; });
    norm.mean = warp_sum(sum) / static_cast<float>(dim);
  }
  float squares = 0;
  for_each([&](int /*i*/, float value) {
    const float distance = value - norm.mean;
    squares = __fmaf_rn(distance, distance, squares);
  });
  norm.factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + transform.eps);
  return norm;
}

/// Calls use(i, value) for the lane's elements of a head of even width, the first `rotated` of all
/// rotated by cos_sin. element(i): one as it is.
template <typename Element, typename Use>
__device__ void rotate_head(int dim, const float* cos_sin, int rotated, const Element& element,
                            const Use& use) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int half = rotated / 2;
#pragma unroll 1
  for (int pair = 2 * lane; pair < half; pair += 2 * kWarp) {
#pragma unroll
    for (int i = pair; i < pair + 2; ++i) {
      if (i >= half) break;
      const float first = element(i);
      const float second = element(i + half);
      const float cosine = cos_sin[2 * i];
      const float sine = cos_sin[2 * i + 1];
      use(i, __fmaf_rn(first, cosine, -__fmul_rn(second, sine)));
      use(i + half, __fmaf_rn(second, cosine, __fmul_rn(first, sine)));
    }
  }
#pragma unroll 1
  for (int i = 2 * (half + lane); i < dim; i += 2 * kWarp) {
    use(i, element(i));
    use(i + 1, element(i + 1));
  }
}

/// Calls store(i, value) for each element of a head, normalized by `weights` if the transform has a
/// norm, before or after its first `rotated` elements are rotated by cos_sin. Only lanes of
/// the same warp read what store() writes to the head itself.
template <typename T, typename Store>
__device__ void transform_head(const T* head, int dim, const HeadTransform& transform,
                               const HeadWeights& weights, const float* cos_sin, int rotated,
                               const Store& store) {
  const auto element = [&](int i) { return to_float(head[i]); };
  if (transform.norm != NormKind::none && transform.norm_after_rotation) {
    // Rotated twice: registers hold no head of any size.
    const HeadNorm norm = measure_head(transform, dim, weights, [&](const auto& use) {
      rotate_head(dim, cos_sin, rotated, element, use);
    });
    rotate_head(dim, cos_sin, rotated, element,
                [&](int i, float value) { store(i, norm.apply(value, i)); });
    return;
  }
  HeadNorm norm;
  if (transform.norm != NormKind::none) {
    norm = measure_head(transform, dim, weights, [&](const auto& use) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) % kWarp * 2; i < dim; i += 2 * kWarp) {
        use(i, element(i));
        use(i + 1, element(i + 1));
      }
    });
  }
  rotate_head(
      dim, cos_sin, rotated, [&](int i) { return norm.apply(element(i), i); }, store);
}

/// What queries at a position are multiplied by after rotation.
__device__ inline float query_factor(const HeadTransform& transform, int position) {
  if (transform.query_scaling == 0) return 1;
  const int ahead = position + transform.query_scaling_ahead;
  if (transform.query_power) {
    const float lengths =
        static_cast<float>(ahead) / static_cast<float>(transform.query_scaling_from);
    return expf(transform.query_scaling * log1pf(lengths));
  }
  const auto steps = static_cast<float>(ahead / transform.query_scaling_from);
  return 1 + transform.query_scaling * logf(1.0F + steps);
}

}  // namespace faststream
