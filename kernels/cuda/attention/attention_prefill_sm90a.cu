// Attention of tiles of queries on Hopper: FlashAttention-3 (arXiv:2407.08608) over KV pages. One
// warp copies tiles of keys and values into shared memory ahead of two warpgroups of 64 queries
// each, which compute the scores of one tile while they multiply the probabilities of the one
// before by its values.
//
// Tiles begin at multiples of their size, from the first that a query sees to the last query's, so
// that a query's sums have the same order whatever is in the batch beside it: tiles that it does
// not see add zeros.
#include <cfloat>

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kGroupRows = 64;
constexpr int kTileRows = kConsumers * kGroupRows;
constexpr int kTokens = 128;  // of a tile of keys and values
constexpr int kTilePages = kTokens / kPageTokens;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kStages = 2;  // tiles of keys, and of values, that are there or on their way
constexpr int kBlockBytes = kTokens * kBlockRowBytes;  // of 64 columns of a tile
constexpr int kPageBlockBytes = kPageTokens * kBlockRowBytes;
static_assert(kTileRows == kTokens, "tiles of queries and of keys have blocks of one size");

// Named barriers.
constexpr int kQueriesThere = 1;  // and one more for each warpgroup
constexpr int kValuesCleared = kQueriesThere + kConsumers;

struct Barriers {
  uint64_t keys_there[kStages];
  uint64_t keys_done[kStages];
  uint64_t values_there[kStages];
  uint64_t values_done[kStages];
};

template <int kDim>
struct Shared {
  static constexpr int kBlocks = kDim / kBlockColumns;
  std::byte queries[kBlocks][kBlockBytes];
  std::byte keys[kStages][kBlocks][kBlockBytes];
  std::byte values[kStages][kBlocks][kBlockBytes];
  Barriers barriers;
};

using Place = PipelinePlace<kStages>;

__device__ inline float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

/// The first token of the first tile that any of the queries sees.
template <typename Rule>
__device__ int first_tile_token(const Rule& rule, const QueryTile& tile) {
  return rule.first_seen(tile.first_position + tile.first) / kTokens * kTokens;
}

/// The lanes of one warp: each copies one page of each tile. `first`: the first token.
template <int kDim>
__device__ void copy_tiles(const AttentionArguments& a, const QueryTile& tile, int first,
                           const CUtensorMap& key_map, const CUtensorMap& value_map,
                           Shared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int32_t* pages =
      a.page_table + static_cast<int64_t>(tile.sequence) * a.max_pages + first / kPageTokens;
  const int n_pages = (tile.last_position - first) / kPageTokens + 1;
  Barriers& barriers = shared.barriers;
  for (int n = 0; n * kTilePages < n_pages; ++n) {
    const Place at(n);
    const int in_tile = min(n_pages - n * kTilePages, kTilePages);
    const uint32_t bytes = in_tile * kPageBlockBytes * Shared<kDim>::kBlocks;
    int row = 0;  // of all pages of the layer, one below the other
    if (lane < in_tile) {
      row = (pages[n * kTilePages + lane] * a.kv.n_kv_heads + tile.kv_head) * kPageTokens;
    }
    const auto copy = [&](const CUtensorMap& map,
                          std::byte(&to)[Shared<kDim>::kBlocks][kBlockBytes], uint64_t& done,
                          uint64_t& there) {
      wait_for_phase(done, at.parity ^ 1U);
      if (lane == 0) arrive_and_expect(there, bytes);
      __syncwarp();
      if (lane >= in_tile) return;
#pragma unroll
      for (int block = 0; block < Shared<kDim>::kBlocks; ++block) {
        copy_box(&to[block][lane * kPageBlockBytes], map, block * kBlockColumns, row, there);
      }
    };
    copy(key_map, shared.keys[at.stage], barriers.keys_done[at.stage],
         barriers.keys_there[at.stage]);
    copy(value_map, shared.values[at.stage], barriers.values_done[at.stage],
         barriers.values_there[at.stage]);
  }
}

/// The 64 queries of a warpgroup. Its tiles of keys and values are counted from the first one seen.
template <typename T, int kDim, typename Rule>
class Consumer {
 public:
  __device__ Consumer(const AttentionArguments& a, const QueryTile& tile, Shared<kDim>& shared)
      : a_(a),
        tile_(tile),
        shared_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        row_(group_ * kGroupRows + thread_ / kWarp * 16 + thread_ % kWarp / 4),
        rule_(a, tile.head),
        first_seen_(rule_.first_seen(tile.first_position + tile.first)),
        first_token_(first_tile_token(rule_, tile)) {}

  __device__ void run() {
    load_queries();
    const int n_tiles = (tile_.last_position - first_token_) / kTokens + 1;
    score(0);
    end_group();
    wait_for_groups<0>();
    release(shared_.barriers.keys_done[0]);
    weigh(0);
    pack();
    if (n_tiles > 1 && first_seen_ > first_token_) clear_values(0);
    for (int n = 1; n < n_tiles; ++n) {
      score(n);
      end_group();
      add_values(n - 1);
      end_group();
      wait_for_groups<1>();
      release(shared_.barriers.keys_done[Place(n).stage]);
      weigh(n);
      wait_for_groups<0>();
      pin(sums_);
      release(shared_.barriers.values_done[Place(n - 1).stage]);
      correct();
      pack();
    }
    clear_values(n_tiles - 1);
    add_values(n_tiles - 1);
    end_group();
    wait_for_groups<0>();
    pin(sums_);
    store();
  }

 private:
  static constexpr int kBlocks = Shared<kDim>::kBlocks;

  // Queries past the end repeat the last one and are not stored.
  __device__ void load_queries() {
    constexpr int kPieces = kDim / 8;  // of 16 bytes, in a row
#pragma unroll
    for (int i = thread_; i < kGroupRows * kPieces; i += kWarpgroup) {
      const int row = group_ * kGroupRows + i / kPieces;
      const int column = i % kPieces * 8;
      const int64_t query = tile_.first_query + min(tile_.first + row, tile_.n_queries - 1);
      const T* from = static_cast<const T*>(a_.q.data) + query * a_.q.stride +
                      static_cast<int64_t>(tile_.head) * kDim + column;
      *reinterpret_cast<uint4*>(shared_.queries[column / kBlockColumns] +
                                swizzled(row, column % kBlockColumns)) =
          *reinterpret_cast<const uint4*>(from);
    }
    publish_shared_writes();
    synchronize_threads(kQueriesThere + group_, kWarpgroup);
  }

  __device__ void release(uint64_t& barrier) const {
    if (thread_ % kWarp == 0) arrive(barrier);
  }

  // scores_ = queries · keysᵀ of tile n.
  __device__ void score(int n) {
    const Place at(n);
    wait_for_phase(shared_.barriers.keys_there[at.stage], at.parity);
    begin_products();
#pragma unroll
    for (int column = 0; column < kDim; column += 16) {
      const int block = column / kBlockColumns;
      const int offset = column % kBlockColumns * 2;
      multiply_rows<T>(
          scores_,
          matrix_descriptor(&shared_.queries[block][group_ * kGroupRows * kBlockRowBytes + offset],
                            16),
          matrix_descriptor(&shared_.keys[at.stage][block][offset], 16), column > 0);
    }
  }

  // sums_ += probabilities · values of tile n.
  __device__ void add_values(int n) {
    const Place at(n);
    wait_for_phase(shared_.barriers.values_there[at.stage], at.parity);
    pin(sums_);
    begin_products();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      multiply_add_rows<T>(
          sums_, probabilities_[step],
          matrix_descriptor(&shared_.values[at.stage][0][step * 16 * kBlockRowBytes], kBlockBytes));
    }
  }

  // Scores of tile n to powers of two, relative to the row's new maximum.
  __device__ void weigh(int n) {
    pin(scores_);
    const int base = first_token_ + n * kTokens;
    if constexpr (Rule::kPlain) {
      const int first_position = tile_.first_position + tile_.first + group_ * kGroupRows;
      if (base + kTokens - 1 > first_position) vary(base, 1);
    } else {
      vary(base, a_.scale_log2);
    }
    const float scale = Rule::kPlain ? a_.scale_log2 : 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = maxima_[half];
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4) {
        maximum = fmaxf(maximum, fmaxf(scores_[i + 2 * half], scores_[i + 2 * half + 1]));
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      corrections_[half] = power_of_two((maxima_[half] - maximum) * scale);
      maxima_[half] = maximum;
      const float shift = maximum * scale;
      float total = 0;
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4) {
#pragma unroll
        for (int j = i + 2 * half; j < i + 2 * half + 2; ++j) {
          scores_[j] = power_of_two(scores_[j] * scale - shift);
          total += scores_[j];
        }
      }
      weights_[half] = weights_[half] * corrections_[half] + total;
    }
  }

  // Scores times `scale` by the rule. Tokens after a row's own may not be there yet: what is in
  // their place may be NaN.
  __device__ void vary(int base, float scale) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = base + i / 4 * 8 + thread_ % 4 * 2 + i % 2;
      const int position = tile_.first_position + tile_.first + row_ + i / 2 % 2 * 8;
      scores_[i] =
          rule_.sees(position, token) ? rule_.vary(scores_[i] * scale, position, token) : -INFINITY;
    }
  }

  __device__ void correct() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sums_[i] *= corrections_[i / 2 % 2];
  }

  __device__ void pack() {
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = step * 8 + i / 2 * 4 + i % 2 * 2;
        probabilities_[step][i] = pack_pair<T>(scores_[at], scores_[at + 1]);
      }
    }
  }

  // Values of tokens of tile n that no query sees, which may be anything: zero times NaN would be
  // NaN. They are before the window, or not there yet.
  __device__ void clear_values(int n) {
    const int base = first_token_ + n * kTokens;
    const int before = max(first_seen_ - base, 0);
    const int seen = min(tile_.last_position + 1 - base, kTokens) - before;
    const int unseen = kTokens - seen;
    if (unseen == 0) return;
    const Place at(n);
    wait_for_phase(shared_.barriers.values_there[at.stage], at.parity);
    constexpr int kPieces = kBlockRowBytes / 16;
    const int thread = group_ * kWarpgroup + thread_;
    for (int i = thread; i < kBlocks * unseen * kPieces; i += kConsumers * kWarpgroup) {
      const int nth = i / kPieces % unseen;
      const int row = nth < before ? nth : nth + seen;
      const int block = i / kPieces / unseen;
      std::byte* piece = &shared_.values[at.stage][block][row * kBlockRowBytes + i % kPieces * 16];
      *reinterpret_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
    }
    publish_shared_writes();
    synchronize_threads(kValuesCleared, kConsumers * kWarpgroup);
  }

  __device__ void store() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float weight = weights_[half];
      weight += __shfl_xor_sync(kAllLanes, weight, 1);
      weight += __shfl_xor_sync(kAllLanes, weight, 2);
      const int query = tile_.first + row_ + half * 8;
      if (query >= tile_.n_queries) continue;
      const float scale = Rule::kPlain ? a_.scale_log2 : 1;
      const float factor = 1.0F / with_sink(a_, tile_.head, maxima_[half] * scale, weight);
      const int64_t row = (tile_.first_query + query) * a_.out.stride +
                          static_cast<int64_t>(tile_.head) * kDim + thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        const float first = sums_[4 * j + 2 * half] * factor;
        const float second = sums_[4 * j + 2 * half + 1] * factor;
        if (a_.out.dtype == a_.q.dtype) {
          *reinterpret_cast<uint32_t*>(static_cast<T*>(a_.out.data) + row + 8 * j) =
              pack_pair<T>(first, second);
        } else {
          store_element(a_.out.data, a_.out.dtype, row + 8 * j, first);
          store_element(a_.out.data, a_.out.dtype, row + 8 * j + 1, second);
        }
      }
    }
  }

  const AttentionArguments& a_;
  const QueryTile& tile_;
  Shared<kDim>& shared_;
  int group_;
  int thread_;
  int row_;  // of the tile: the first of this thread's two, the other is 8 below
  Rule rule_;
  int first_seen_;  // token, of any query
  int first_token_;
  float scores_[kTokens / 2];
  float sums_[kDim / 2] = {};
  uint32_t probabilities_[kTokens / 16][4];
  float maxima_[2] = {-FLT_MAX, -FLT_MAX};
  float weights_[2] = {};  // of this lane's columns; the four lanes of a row are added at the end
  float corrections_[2];
};

template <typename T, int kDim, typename Rule>
__global__ __launch_bounds__(kThreads, 1) void attention_wgmma_kernel(
    const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map,
    const __grid_constant__ AttentionArguments a) {
  extern __shared__ std::byte memory[];
  begin_kernel();
  const QueryTile tile = query_tile(a, kTileRows);
  if (tile.empty()) return;
  auto& shared = aligned<Shared<kDim>>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(shared.barriers.keys_there[stage], 1);
      init_barrier(shared.barriers.values_there[stage], 1);
      init_barrier(shared.barriers.keys_done[stage], kConsumers * kWarpgroup / kWarp);
      init_barrier(shared.barriers.values_done[stage], kConsumers * kWarpgroup / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    if (threadIdx.x < kWarp) {
      copy_tiles<kDim>(a, tile, first_tile_token(Rule(a, tile.head), tile), key_map, value_map,
                       shared);
    }
  } else {
    take_registers<232>();
    Consumer<T, kDim, Rule>(a, tile, shared).run();
  }
}

/// All pages of a layer, one below the other, in boxes of a page's rows.
CUtensorMap describe_pages(const KvLayer& kv, const void* data) {
  return describe({data, kv.dtype, int64_t{kv.n_pages} * kv.n_kv_heads * kPageTokens, kv.head_dim,
                   kv.head_dim, kPageTokens});
}

template <typename T, int kDim>
void launch(const AttentionArguments& a, const BatchView& batch, const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared<kDim>) + kBlockAlignment;
  const dim3 grid(ceil_div(batch.max_query_len, kTileRows), a.n_heads, batch.n_sequences);
  with_rule(a, [&]<typename Rule>() {
    const auto kernel = attention_wgmma_kernel<T, kDim, Rule>;
    allow_shared_memory(kernel, kSharedBytes);
    queue.launch("computing attention", kernel, {grid, kThreads, kSharedBytes},
                 describe_pages(a.kv, a.kv.k), describe_pages(a.kv, a.kv.v), a);
  });
}

}  // namespace

bool attention_prefill_sm90a(const AttentionArguments& a, const BatchView& batch,
                             const Queue& queue) {
  const bool fits =
      a.scale_log2 > 0 && a.out.stride % 2 == 0 && (a.kv.head_dim == 64 || a.kv.head_dim == 128);
  if (!fits) return false;
  const auto with_type = [&]<typename T>() {
    a.kv.head_dim == 64 ? launch<T, 64>(a, batch, queue) : launch<T, 128>(a, batch, queue);
  };
  a.kv.dtype == DType::f16 ? with_type.template operator()<__half>()
                           : with_type.template operator()<__nv_bfloat16>();
  return true;
}

}  // namespace faststream
