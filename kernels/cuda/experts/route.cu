// Which experts each token uses, and the order in which they do their work: two kernels that are
// bound by latency, a few microseconds each, or one where a block can hold all tokens.
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kBlockThreads = 1024;
constexpr size_t kBlockSharedBytes = 48 << 10;  // that any kernel may have

// A float as an integer of the same order. kTaken, a NaN, is less than anything else.
constexpr uint32_t kTaken = 0xffffffffU;
__device__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// By a warp whose lane l alone touches values l, l + 32, ...: the index of the largest value, the
// smallest of equal ones, which becomes kTaken.
__device__ int take_largest(float* values, int n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint64_t best = 0;
  for (int i = lane; i < n; i += kWarp) {
    best = max(best, static_cast<uint64_t>(ordered(values[i])) << 32 | ~static_cast<uint32_t>(i));
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best = max(best, __shfl_xor_sync(kAllLanes, best, step));
  }
  const int index = static_cast<int>(~static_cast<uint32_t>(best));
  if (index % kWarp == lane) values[index] = __uint_as_float(kTaken);
  return index;
}

// The sum of the two best of `n` values, or the only one.
__device__ float sum_of_two_best(const float* values, int n) {
  if (n == 1) return values[0];
  float best = fmaxf(values[0], values[1]);
  float second = fminf(values[0], values[1]);
  for (int i = 2; i < n; ++i) {
    second = fmaxf(second, fminf(best, values[i]));
    best = fmaxf(best, values[i]);
  }
  return best + second;
}

// The shared memory of a warp that chooses among so many experts.
size_t choice_bytes(int64_t n_experts, const Router& router) {
  return static_cast<size_t>(2 * n_experts + router.groups) * sizeof(float);
}

// By a warp: the experts of one token and their weights.
__device__ void choose_experts(const Matrix& scores, const Router& router, int64_t token,
                               const Routing& routing, std::byte* shared) {
  const int n = static_cast<int>(scores.cols);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* logits = static_cast<const float*>(scores.data) + token * scores.stride;
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

  int32_t* experts = routing.experts + token * router.used;
  float* weights = routing.weights + token * router.used;
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

// By a block: counts the pairs of each expert, lists their tiles, and gives each pair its place.
__device__ void sort_by_expert(const Routing& r, int n_experts, int used, int n_pairs,
                               std::byte* shared) {
  auto* counts = reinterpret_cast<int32_t*>(shared);  // [n_experts]
  int32_t* next = counts + n_experts;                 // [n_experts] the next pair's place
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < n_experts; e += threads) counts[e] = 0;
  __syncthreads();
  for (int pair = thread; pair < n_pairs; pair += threads) {
    atomicAdd(&counts[r.experts[pair]], 1);
  }
  __syncthreads();

  if (thread < kWarp) {
    const auto sum_to = [thread](int value) {  // of the lanes up to this one
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, value, step);
        if (thread >= step) value += other;
      }
      return value;
    };
    int places = 0;
    int tiles = 0;
    for (int base = 0; base < n_experts; base += kWarp) {
      const int expert = base + thread;
      const int count = expert < n_experts ? counts[expert] : 0;
      const int last_place = places + sum_to(count);
      const int n_tiles = ceil_div(count, r.tile_rows);
      const int last_tile = tiles + sum_to(n_tiles);
      if (expert < n_experts) next[expert] = last_place - count;
      for (int i = 0; i < n_tiles; ++i) {
        const int begin = i * r.tile_rows;
        r.tiles[last_tile - n_tiles + i] = {expert, last_place - count + begin,
                                            min(r.tile_rows, count - begin)};
      }
      places = __shfl_sync(kAllLanes, last_place, kWarp - 1);
      tiles = __shfl_sync(kAllLanes, last_tile, kWarp - 1);
    }
    if (thread == 0) *r.n_tiles = tiles;
  }
  __syncthreads();
  for (int pair = thread; pair < n_pairs; pair += threads) {
    const int place = atomicAdd(&next[r.experts[pair]], 1);
    r.pair_at[place] = pair;
    r.token_at[place] = pair / used;
  }
}

// A warp for each token.
__global__ void choose_experts_kernel(Matrix scores, Router router, Routing routing) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  choose_experts(scores, router, blockIdx.x, routing, memory);
}

// One block.
__global__ __launch_bounds__(kBlockThreads) void sort_by_expert_kernel(Routing routing,
                                                                       int n_experts, int used,
                                                                       int n_pairs) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  sort_by_expert(routing, n_experts, used, n_pairs, memory);
}

// Both, in one block of a warp for each token.
__global__ __launch_bounds__(kBlockThreads) void route_kernel(Matrix scores, Router router,
                                                              Routing routing, int warp_bytes) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  choose_experts(scores, router, warp, routing, memory + warp * warp_bytes);
  __syncthreads();
  sort_by_expert(routing, static_cast<int>(scores.cols), router.used,
                 static_cast<int>(scores.rows) * router.used, memory);
}

}  // namespace

void route(const Matrix& scores, const Router& router, const Routing& routing, const Queue& queue) {
  const auto tokens = static_cast<unsigned>(scores.rows);
  const auto n_experts = static_cast<int>(scores.cols);
  const size_t warp_bytes = choice_bytes(n_experts, router);
  const size_t sort_bytes = static_cast<size_t>(2 * n_experts) * sizeof(int32_t);
  if (tokens * kWarp <= kBlockThreads && tokens * warp_bytes <= kBlockSharedBytes) {
    // sort_bytes are fewer than those of a warp.
    queue.launch("choosing experts", route_kernel, {1, tokens * kWarp, tokens * warp_bytes}, scores,
                 router, routing, static_cast<int>(warp_bytes));
    return;
  }
  queue.launch("choosing experts", choose_experts_kernel, {tokens, kWarp, warp_bytes}, scores,
               router, routing);
  queue.launch("sorting by expert", sort_by_expert_kernel, {1, kBlockThreads, sort_bytes}, routing,
               n_experts, router.used, static_cast<int>(scores.rows * router.used));
}

}  // namespace faststream
