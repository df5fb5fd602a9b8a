// Which experts a token uses, as Router has it, by a warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// A float as an integer of the same order. kTaken, a NaN, is less than anything else.
inline constexpr uint32_t kTaken = 0xffffffffU;
__device__ inline uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// By a warp whose lane l alone touches values l, l + 32, ...: the index of the largest value, the
/// smallest of equal ones, which becomes kTaken.
__device__ inline int take_largest(float* values, int n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t largest = 0;
  auto first = static_cast<uint32_t>(n);  // index of this lane's largest
  for (int i = lane; i < n; i += kWarp) {
    const uint32_t value = ordered(values[i]);
    if (i == lane || value > largest) first = static_cast<uint32_t>(i);
    largest = max(largest, value);
  }
  const uint32_t best = __reduce_max_sync(kAllLanes, largest);
  const auto index = static_cast<int>(
      __reduce_min_sync(kAllLanes, largest == best ? first : static_cast<uint32_t>(n)));
  if (index % kWarp == lane) values[index] = __uint_as_float(kTaken);
  return index;
}

/// The sum of the two best of `n` values, or the only one.
__device__ inline float sum_of_two_best(const float* values, int n) {
  if (n == 1) return values[0];
  float best = fmaxf(values[0], values[1]);
  float second = fminf(values[0], values[1]);
  for (int i = 2; i < n; ++i) {
    second = fmaxf(second, fminf(best, values[i]));
    best = fmaxf(best, values[i]);
  }
  return best + second;
}

/// The shared memory of a warp that chooses among so many experts.
inline size_t choice_bytes(int64_t n_experts, const Router& router) {
  return static_cast<size_t>(2 * n_experts + router.groups) * sizeof(float);
}

/// By a warp: the experts of one token with these logits [n], and their weights [router.used].
/// `shared`: choice_bytes() of shared memory.
__device__ inline void choose_experts(const float* logits, int n, const Router& router,
                                      int32_t* experts, float* weights, std::byte* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* score = reinterpret_cast<float*>(shared);  // [n]
  float* choice = score + n;                       // [n]
  float* group = choice + n;                       // [router.groups]

  float largest = -INFINITY;
  float total = 0;
  if (router.score == Router::Score::softmax) {
    for (int i = lane; i < n; i += kWarp) largest = fmaxf(largest, logits[i]);
    largest = warp_max(largest);
    for (int i = lane; i < n; i += kWarp) total += expf(logits[i] - largest);
    total = warp_sum(total);
  }
  for (int i = lane; i < n; i += kWarp) {
    score[i] = router.score == Router::Score::softmax ? expf(logits[i] - largest) / total
                                                      : 1.0F / (1.0F + expf(-logits[i]));
    choice[i] = router.correction != nullptr ? score[i] + router.correction[i] : score[i];
  }
  __syncwarp();

  if (router.groups_used < router.groups) {
    const int size = n / router.groups;
    for (int g = lane; g < router.groups; g += kWarp) {
      group[g] = sum_of_two_best(choice + g * size, size);
    }
    for (int i = 0; i < router.groups_used; ++i) take_largest(group, router.groups);
    __syncwarp();
    for (int i = lane; i < n; i += kWarp) {
      if (__float_as_uint(group[i / size]) != kTaken) choice[i] = __uint_as_float(kTaken);
    }
  }

  float sum = 0;
  for (int k = 0; k < router.used; ++k) {
    const int expert = take_largest(choice, n);
    sum += score[expert];
    if (k % kWarp == lane) experts[k] = expert;
  }
  // Sigmoids may all be zero.
  const float factor = router.normalized ? router.scale / (sum + 1e-20F) : router.scale;
  for (int k = lane; k < router.used; k += kWarp) weights[k] = score[experts[k]] * factor;
}

}  // namespace faststream
