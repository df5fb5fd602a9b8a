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

/// By a warp whose lane l has the keys of indices l, l + 32, ... < n: the largest, of the smallest
/// index of equal ones, becomes kTaken, and the lane that has it calls use(i) with its i-th key's
/// i.
template <int kEach, typename Use>
__device__ void take_largest(uint32_t (&keys)[kEach], const Use& use) {
  uint32_t largest = keys[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = max(largest, keys[i]);
  largest = __reduce_max_sync(kAllLanes, largest);
  constexpr int kNone = kEach;
  int its = kNone;
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    if (keys[i] == largest) its = i;
  }
  const unsigned lanes = __ballot_sync(kAllLanes, its != kNone);
  if ((lanes & (lanes - 1)) != 0) {
    const int index = static_cast<int>(threadIdx.x) % kWarp + its * kWarp;
    if (index != __reduce_min_sync(kAllLanes, index)) its = kNone;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i != its) continue;
    keys[i] = kTaken;
    use(i);
  }
}

/// By a warp whose lane l has the logits of experts l, l + 32, ... and their keys: log Σ exp(logit)
/// of those that a sparse mixer takes together with the best one that is not taken.
template <int kEach>
__device__ float total_near_largest(const float (&logits)[kEach], const uint32_t (&keys)[kEach],
                                    float margin) {
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (keys[i] != kTaken) largest = fmaxf(largest, logits[i]);
  }
  largest = warp_max(largest);
  float total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool is_far = (largest - logits[i]) / fmaxf(fabsf(logits[i]), largest) > margin;
    if (keys[i] != kTaken && !is_far) total += expf(logits[i] - largest);
  }
  return largest + logf(warp_sum(total));
}

/// The score of a group of `n` experts with these.
__device__ inline float group_score(const float* values, int n, Router::GroupScore kind) {
  if (n == 1) return values[0];
  float best = fmaxf(values[0], values[1]);
  float second = fminf(values[0], values[1]);
#pragma unroll 1
  for (int i = 2; i < n; ++i) {
    second = fmaxf(second, fminf(best, values[i]));
    best = fmaxf(best, values[i]);
  }
  return kind == Router::GroupScore::largest ? best : best + second;
}

/// The shared memory of a warp that chooses among so many experts.
inline size_t choice_bytes(int64_t n_experts, const Router& router) {
  if (router.groups_used >= router.groups) return 0;
  return static_cast<size_t>(n_experts + router.groups) * sizeof(float);
}

/// By a warp: the experts of one token, and what weigh_experts() makes weights [router.used] of.
/// Lane l has the logits of experts l, l + 32, ... < n <= 32 · kEach. `shared`: choice_bytes() of
/// shared memory.
template <int kEach>
__device__ void take_experts(const float (&logits)[kEach], int n, const Router& router,
                             int32_t* experts, float* weights, std::byte* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto expert_at = [lane](int i) { return lane + i * kWarp; };
  const bool is_softmax = router.score == Router::Score::softmax;
  // Scores grow with logits, which are compared where nothing is added to scores.
  const bool has_groups = router.groups_used < router.groups;
  const bool compares_scores = has_groups || router.correction != nullptr;

  float total = 0;  // a softmax's, as a logarithm
  if (is_softmax && (compares_scores || !router.normalized)) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) < n) largest = fmaxf(largest, logits[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) < n) total += expf(logits[i] - largest);
    }
    total = largest + logf(warp_sum(total));
  }

  uint32_t choice[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) choice[i] = expert_at(i) < n ? ordered(logits[i]) : kTaken;
  if (compares_scores) {
    auto* values = reinterpret_cast<float*>(shared);         // [n]
    auto* is_used = reinterpret_cast<int32_t*>(values + n);  // [router.groups]
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_at(i) >= n) continue;
      float score = is_softmax ? expf(logits[i] - total) : 1.0F / (1.0F + expf(-logits[i]));
      if (router.score == Router::Score::logit) score = logits[i];
      if (router.correction != nullptr) score += (router.correction + lane)[i * kWarp];
      choice[i] = ordered(score);
      if (has_groups) values[expert_at(i)] = score;
    }
    if (has_groups) {
      const int size = n / router.groups;
      __syncwarp();
      uint32_t group[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int g = expert_at(i);
        if (g < router.groups) is_used[g] = 0;
        group[i] = g < router.groups
                       ? ordered(group_score(values + g * size, size, router.group_score))
                       : kTaken;
      }
      __syncwarp();
      for (int k = 0; k < router.groups_used; ++k) {
        take_largest(group, [&](int i) { is_used[expert_at(i)] = 1; });
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (expert_at(i) < n && is_used[expert_at(i) / size] == 0) choice[i] = kTaken;
      }
    }
  }

  const int used = router.used;
  for (int k = 0; k < used; ++k) {
    if (router.score == Router::Score::sparse_mixer) {
      total = total_near_largest(logits, choice, router.margin);
    }
    take_largest(choice, [&](int i) {
      experts[k] = expert_at(i);
      weights[k] = logits[i] - total;
    });
  }
}

/// By a warp: makes what take_experts() gave, logits, of a softmax that is not normalized beside
/// the total of all that it is of, the experts' weights.
inline __device__ void weigh_experts(const Router& router, const int32_t* experts, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool is_softmax =
      router.score == Router::Score::softmax || router.score == Router::Score::sparse_mixer;
  __syncwarp();
  float largest = 0;
  if (is_softmax && router.normalized) {
    largest = -INFINITY;
    for (int k = lane; k < router.used; k += kWarp) largest = fmaxf(largest, weights[k]);
    largest = warp_max(largest);
  }
  float sum = 0;
  for (int k = lane; k < router.used; k += kWarp) {
    const float score = is_softmax ? expf(weights[k] - largest) : 1.0F / (1.0F + expf(-weights[k]));
    weights[k] = score;
    sum += score;
  }
  sum = warp_sum(sum);
  // Sigmoids may all be zero.
  const float factor = router.normalized ? router.scale / (sum + 1e-20F) : router.scale;
  for (int k = lane; k < router.used; k += kWarp) {
    weights[k] *= factor;
    if (router.expert_scales != nullptr) weights[k] *= router.expert_scales[experts[k]];
  }
}

/// Both.
template <int kEach>
__device__ void choose_experts(const float (&logits)[kEach], int n, const Router& router,
                               int32_t* experts, float* weights, std::byte* shared) {
  take_experts(logits, n, router, experts, weights, shared);
  weigh_experts(router, experts, weights);
}

}  // namespace faststream
