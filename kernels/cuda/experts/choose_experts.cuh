// Which experts a token uses, as Router has it, by a warp that holds their scores in registers.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// A float as an integer of the same order, and one that is less than any of a score.
inline constexpr uint32_t kTaken = 0;
__device__ inline uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return max((bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U, 1U);
}

/// By a warp whose lane l has the keys of indices l, l + 32, ... < n: the index of the largest, the
/// smallest of equal ones, in the lane that has its key, which becomes kTaken; -1 in the others.
template <int kEach>
__device__ int take_largest(uint32_t (&keys)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t largest = keys[0];
  int index = lane;  // of this lane's largest
#pragma unroll
  for (int i = 1; i < kEach; ++i) {
    if (keys[i] > largest) index = lane + i * kWarp;
    largest = max(largest, keys[i]);
  }
  bool has_best = largest == __reduce_max_sync(kAllLanes, largest);
  const unsigned lanes = __ballot_sync(kAllLanes, has_best);
  if ((lanes & (lanes - 1)) != 0) {
    has_best = index == __reduce_min_sync(kAllLanes, has_best ? index : INT_MAX);
  }
  if (!has_best) return -1;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (index == lane + i * kWarp) keys[i] = kTaken;
  }
  return index;
}

/// The sum of the two best of `n` values, or the only one.
__device__ inline float sum_of_two_best(const float* values, int n) {
  if (n == 1) return values[0];
  float best = fmaxf(values[0], values[1]);
  float second = fminf(values[0], values[1]);
#pragma unroll 1
  for (int i = 2; i < n; ++i) {
    second = fmaxf(second, fminf(best, values[i]));
    best = fmaxf(best, values[i]);
  }
  return best + second;
}

/// The shared memory of a warp that chooses among so many experts.
inline size_t choice_bytes(int64_t n_experts, const Router& router) {
  if (router.groups_used >= router.groups) return 0;
  return static_cast<size_t>(n_experts + router.groups) * sizeof(float);
}

/// By a warp: the experts of one token, and their scores [router.used]. Lane l has the logits of
/// experts l, l + 32, ... < n <= 32 · kEach. `shared`: choice_bytes() of shared memory.
template <int kEach>
__device__ void take_experts(const float (&logits)[kEach], int n, const Router& router,
                             int32_t* experts, float* scores, std::byte* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto expert_at = [lane](int i) { return lane + i * kWarp; };

  float score[kEach];
  if (router.score == Router::Score::softmax) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) < n) largest = fmaxf(largest, logits[i]);
    }
    largest = warp_max(largest);
    float total = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      score[i] = expert_at(i) < n ? expf(logits[i] - largest) : 0;
      total += score[i];
    }
    total = warp_sum(total);
#pragma unroll
    for (float& value : score) value /= total;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) score[i] = 1.0F / (1.0F + expf(-logits[i]));
  }

  uint32_t choice[kEach];
  float corrected[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool exists = expert_at(i) < n;
    corrected[i] = score[i];
    if (exists && router.correction != nullptr) corrected[i] += router.correction[expert_at(i)];
    choice[i] = exists ? ordered(corrected[i]) : kTaken;
  }
  if (router.groups_used < router.groups) {
    auto* values = reinterpret_cast<float*>(shared);         // [n]
    auto* is_used = reinterpret_cast<int32_t*>(values + n);  // [router.groups]
    const int size = n / router.groups;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) < n) values[expert_at(i)] = corrected[i];
    }
    __syncwarp();
    uint32_t group[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int g = expert_at(i);
      if (g < router.groups) is_used[g] = 0;
      group[i] = g < router.groups ? ordered(sum_of_two_best(values + g * size, size)) : kTaken;
    }
    __syncwarp();
    for (int k = 0; k < router.groups_used; ++k) {
      if (const int g = take_largest(group); g >= 0) is_used[g] = 1;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) < n && is_used[expert_at(i) / size] == 0) choice[i] = kTaken;
    }
  }

  for (int k = 0; k < router.used; ++k) {
    const int expert = take_largest(choice);
    if (expert < 0) continue;
    float its_score = score[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) {
      if (expert_at(i) == expert) its_score = score[i];
    }
    experts[k] = expert;
    scores[k] = its_score;
  }
}

/// By a warp: makes the scores of a token's experts their weights.
inline __device__ void weigh_experts(const Router& router, float* weights) {
  __syncwarp();
  float sum = 0;
  for (int k = 0; k < router.used; ++k) sum += weights[k];
  __syncwarp();
  // Sigmoids may all be zero.
  const float factor = router.normalized ? router.scale / (sum + 1e-20F) : router.scale;
  for (int k = static_cast<int>(threadIdx.x) % kWarp; k < router.used; k += kWarp) {
    weights[k] *= factor;
  }
}

/// Both.
template <int kEach>
__device__ void choose_experts(const float (&logits)[kEach], int n, const Router& router,
                               int32_t* experts, float* weights, std::byte* shared) {
  take_experts(logits, n, router, experts, weights, shared);
  weigh_experts(router, weights);
}

}  // namespace faststream
