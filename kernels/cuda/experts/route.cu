// Which experts each token uses, and the order in which they do their work: two kernels that are
// bound by latency, a few microseconds each, or one where a block can hold all tokens. Of many
// pairs one block would write places for long, a sector each: several count theirs first.
#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kBlockThreads = 1024;
constexpr size_t kBlockSharedBytes = 48 << 10;  // that any kernel may have
constexpr int kSortThreads = 256;               // of several blocks that sort
constexpr int kMostEach = 16;  // experts of a lane, for which kBlockThreads threads have registers

// Calls f(pair, expert) for this thread's pairs of those from `begin` to `end`; several experts are
// on their way together.
template <typename F>
__device__ void for_pairs(const int32_t* experts, int begin, int end, const F& f) {
  constexpr int kTogether = 8;
  const int threads = static_cast<int>(blockDim.x);
  for (int first = begin + static_cast<int>(threadIdx.x); first < end;
       first += kTogether * threads) {
    int32_t expert[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int pair = first + i * threads;
      expert[i] = pair < end ? experts[pair] : 0;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * threads < end) f(first + i * threads, expert[i]);
    }
  }
}

// By a block: counts [n_experts] become those of pairs from `begin` to `end`.
__device__ void count_pairs(const Routing& r, int n_experts, int begin, int end, int32_t* counts) {
  const int threads = static_cast<int>(blockDim.x);
  for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += threads) counts[e] = 0;
  __syncthreads();
  for_pairs(r.experts, begin, end, [&](int /*pair*/, int expert) {
    if (expert < n_experts) atomicAdd(&counts[expert], 1);
  });
  __syncthreads();
}

// By a warp: adds each expert's first place to next [n_experts], and lists all tiles, if it is to.
// A lane has some experts in a row, so that numbers are exchanged once.
__device__ void divide_places(const Routing& r, int n_experts, const int32_t* counts, int32_t* next,
                              bool lists_tiles) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = ceil_div(n_experts, kWarp);
  const int first = min(lane * each, n_experts);
  const int last = min(first + each, n_experts);
  const auto tiles_of = [&](int count) {
    return count <= r.tile_rows ? min(count, 1) : ceil_div(count, r.tile_rows);
  };
  int place = 0;
  int tile = 0;
  for (int e = first; e < last; ++e) {
    place += counts[e];
    tile += tiles_of(counts[e]);
  }
  const int own_places = place;
  const int own_tiles = tile;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other_places = __shfl_up_sync(kAllLanes, place, step);
    const int other_tiles = __shfl_up_sync(kAllLanes, tile, step);
    if (lane < step) continue;
    place += other_places;
    tile += other_tiles;
  }
  if (lists_tiles && lane == kWarp - 1) *r.n_tiles = tile;
  place -= own_places;
  tile -= own_tiles;
  for (int e = first; e < last; ++e) {
    const int count = counts[e];
    next[e] += place;
    if (lists_tiles && count > 0) {
      const int n_tiles = tiles_of(count);
      const int even = n_tiles == 1 ? count : ceil_div(count, n_tiles);
      const int rows = n_tiles == 1 ? count : ceil_div(even, r.tile_grain) * r.tile_grain;
      for (int begin = 0; begin < count; begin += rows) {
        r.tiles[tile++] = {e, place + begin, min(rows, count - begin)};
      }
    }
    place += count;
  }
}

// By a block: gives pairs from `begin` to `end` their places, from next [n_experts] on, but those
// of experts from n_experts on, which have no work: -1.
__device__ void place_pairs(const Routing& r, int n_experts, int used, int begin, int end,
                            int32_t* next) {
  for_pairs(r.experts, begin, end, [&](int pair, int expert) {
    const int place = expert < n_experts ? atomicAdd(&next[expert], 1) : -1;
    r.place_of[pair] = place;
    if (place < 0) return;
    r.token_at[place] = pair / used;
  });
}

// By a block: all pairs.
__device__ void sort_by_expert(const Routing& r, int n_experts, int used, int n_pairs,
                               std::byte* shared) {
  auto* counts = reinterpret_cast<int32_t*>(shared);  // [n_experts]
  int32_t* next = counts + n_experts;                 // [n_experts] the next pair's place
  count_pairs(r, n_experts, 0, n_pairs, counts);
  for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += static_cast<int>(blockDim.x)) {
    next[e] = 0;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) divide_places(r, n_experts, counts, next, true);
  __syncthreads();
  place_pairs(r, n_experts, used, 0, n_pairs, next);
}

// Each block: how many of its kBlockPairs pairs each expert has.
__global__ __launch_bounds__(kSortThreads) void count_experts_kernel(Routing routing, int n_experts,
                                                                     int n_pairs) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  auto* counts = reinterpret_cast<int32_t*>(memory);
  const int begin = static_cast<int>(blockIdx.x) * kBlockPairs;
  count_pairs(routing, n_experts, begin, min(begin + kBlockPairs, n_pairs), counts);
  int32_t* to = routing.block_counts + static_cast<int64_t>(blockIdx.x) * n_experts;
  for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += kSortThreads) to[e] = counts[e];
}

// Then: their places, behind those of the blocks before.
__global__ __launch_bounds__(kSortThreads) void place_pairs_kernel(Routing routing, int n_experts,
                                                                   int used, int n_pairs) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  auto* counts = reinterpret_cast<int32_t*>(memory);
  int32_t* next = counts + n_experts;
  const int block = static_cast<int>(blockIdx.x);
  for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += kSortThreads) {
    int all = 0;
    int before = 0;
#pragma unroll 8
    for (int b = 0; b < static_cast<int>(gridDim.x); ++b) {
      const int32_t its = routing.block_counts[static_cast<int64_t>(b) * n_experts + e];
      if (b < block) before += its;
      all += its;
    }
    counts[e] = all;
    next[e] = before;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) divide_places(routing, n_experts, counts, next, block == 0);
  __syncthreads();
  const int begin = block * kBlockPairs;
  place_pairs(routing, n_experts, used, begin, min(begin + kBlockPairs, n_pairs), next);
}

// By a warp: `experts` and `weights`, [router.used], of a token.
template <int kEach>
__device__ void choose_experts_of(const Matrix& scores, int64_t token, const Router& router,
                                  int32_t* experts, float* weights, std::byte* shared) {
  const auto* row = static_cast<const float*>(scores.data) + token * scores.stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float logits[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    logits[i] = lane + i * kWarp < scores.cols ? row[lane + i * kWarp] : 0;
  }
  choose_experts(logits, static_cast<int>(scores.cols), router, experts, weights, shared);
}

// A warp for each token.
template <int kEach>
__global__ void choose_experts_kernel(Matrix scores, Router router, Routing routing) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  const int64_t first_pair = int64_t{blockIdx.x} * router.used;
  choose_experts_of<kEach>(scores, blockIdx.x, router, routing.experts + first_pair,
                           routing.weights + first_pair, memory);
}

// One block.
__global__ __launch_bounds__(kBlockThreads) void sort_by_expert_kernel(Routing routing,
                                                                       int n_experts, int used,
                                                                       int n_pairs) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  sort_by_expert(routing, n_experts, used, n_pairs, memory);
}

/// The shared memory of a block that routes so many tokens: counts of pairs by expert, the next
/// places, what each token chose, and what a warp needs to choose.
struct RouteMemory {
  int32_t* counts;   // [n_experts]
  int32_t* next;     // [n_experts]
  int32_t* experts;  // [tokens · used]
  float* weights;    // [tokens · used]
  std::byte* choice;

  __device__ RouteMemory(std::byte* memory, int n_experts, int pairs)
      : counts(reinterpret_cast<int32_t*>(memory)),
        next(counts + n_experts),
        experts(next + n_experts),
        weights(reinterpret_cast<float*>(experts + pairs)),
        choice(reinterpret_cast<std::byte*>(weights + pairs)) {}
  static size_t bytes(int64_t n_experts, int64_t pairs, size_t choice_bytes) {
    return static_cast<size_t>(n_experts + pairs) * 2 * sizeof(int32_t) + choice_bytes;
  }
};

// Both, in one block of a warp for each token. Of little code, which runs once: fetching it is most
// of the time.
template <int kEach>
__global__ __launch_bounds__(kBlockThreads) void route_kernel(Matrix scores, Router router,
                                                              Routing routing, int n_experts,
                                                              int warp_bytes) {
  extern __shared__ __align__(16) std::byte memory[];
  begin_kernel();
  const int token = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const RouteMemory m(memory, n_experts, static_cast<int>(scores.rows) * router.used);
  for (int e = static_cast<int>(threadIdx.x); e < n_experts; e += static_cast<int>(blockDim.x)) {
    m.counts[e] = 0;
    m.next[e] = 0;
  }
  const int first_pair = token * router.used;
  const int32_t* experts = m.experts + first_pair;
  choose_experts_of<kEach>(scores, token, router, m.experts + first_pair, m.weights + first_pair,
                           m.choice + token * warp_bytes);
  __syncthreads();
  for (int k = lane; k < router.used; k += kWarp) {
    if (experts[k] < n_experts) atomicAdd(&m.counts[experts[k]], 1);
  }
  __syncthreads();
  if (token == 0) divide_places(routing, n_experts, m.counts, m.next, true);
  __syncthreads();
  for (int k = lane; k < router.used; k += kWarp) {
    const int pair = first_pair + k;
    const int place = experts[k] < n_experts ? atomicAdd(&m.next[experts[k]], 1) : -1;
    routing.weights[pair] = m.weights[pair];
    routing.place_of[pair] = place;
    if (place >= 0) routing.token_at[place] = token;
  }
}

template <int kEach>
void route_from(const Matrix& scores, const Router& router, int32_t n_experts,
                const Routing& routing, const Queue& queue) {
  const auto tokens = static_cast<unsigned>(scores.rows);
  const size_t warp_bytes = choice_bytes(scores.cols, router);
  const size_t sort_bytes = static_cast<size_t>(2 * n_experts) * sizeof(int32_t);
  if constexpr (kEach <= kMostEach) {
    const size_t bytes =
        RouteMemory::bytes(n_experts, scores.rows * router.used, tokens * warp_bytes);
    if (tokens * kWarp <= kBlockThreads && bytes <= kBlockSharedBytes) {
      queue.launch("choosing experts", route_kernel<kEach>, {1, tokens * kWarp, bytes}, scores,
                   router, routing, n_experts, static_cast<int>(warp_bytes));
      return;
    }
  }
  queue.launch("choosing experts", choose_experts_kernel<kEach>, {tokens, kWarp, warp_bytes},
               scores, router, routing);
  const auto pairs = static_cast<int>(scores.rows * router.used);
  if (routing.block_counts == nullptr) {
    queue.launch("sorting by expert", sort_by_expert_kernel, {1, kBlockThreads, sort_bytes},
                 routing, n_experts, router.used, pairs);
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(pairs, kBlockPairs));
  queue.launch("counting by expert", count_experts_kernel, {blocks, kSortThreads, sort_bytes / 2},
               routing, n_experts, pairs);
  queue.launch("sorting by expert", place_pairs_kernel, {blocks, kSortThreads, sort_bytes}, routing,
               n_experts, router.used, pairs);
}

}  // namespace

void route(const Matrix& scores, const Router& router, int32_t n_experts, const Routing& routing,
           const Queue& queue) {
  if (scores.cols <= 4 * kWarp) {
    route_from<4>(scores, router, n_experts, routing, queue);
  } else if (scores.cols <= kMostEach * kWarp) {
    route_from<kMostEach>(scores, router, n_experts, routing, queue);
  } else {
    route_from<kMostExperts / kWarp>(scores, router, n_experts, routing, queue);
  }
}

}  // namespace faststream
