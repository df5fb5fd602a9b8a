// What the kernels of latent attention of one query a sequence share on Hopper: keys of 576
// elements, whose last 512 are the values, in tiles of 64 tokens that bulk copies bring to shared
// memory.
#pragma once

#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/attention/item_finder.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream::latent {

inline constexpr int kTokens = 64;  // of a tile
inline constexpr int kTilePages = kTokens / kPageTokens;
inline constexpr int kKeyDim = 576;
inline constexpr int kValueDim = 512;  // the last columns of keys
inline constexpr int kKeyBlocks = kKeyDim / kBlockColumns;
inline constexpr int kBlockBytes = kTokens * kBlockRowBytes;
inline constexpr int kPageBlockBytes = kPageTokens * kBlockRowBytes;

struct Maps {
  CUtensorMap queries;  // heads of all tokens, and what tokens keep, one below the other
  CUtensorMap keys;     // all pages likewise
  int query_rows;       // of a token
  int box_rows;         // of queries
};

/// Of up to `tile_heads` heads at a time.
inline Maps describe_latents(const AttentionArguments& a, int tile_heads) {
  const int64_t query_rows = a.q.stride / kKeyDim;
  const int box_rows = std::min(a.n_heads, tile_heads);
  return {.queries = describe({a.q.data, a.q.dtype, (a.q.rows - 1) * query_rows + a.n_heads,
                               kKeyDim, kKeyDim, box_rows}),
          .keys = describe({a.kv.k, a.kv.dtype, int64_t{a.kv.n_pages} * kPageTokens, kKeyDim,
                            kKeyDim, kPageTokens}),
          .query_rows = static_cast<int>(query_rows),
          .box_rows = box_rows};
}

/// By all threads of a block: initializes its barriers, of each of which `warps` warps say that
/// they are done with what is there.
template <typename Shared>
__device__ void begin_barriers(Shared& shared, int warps) {
  if (threadIdx.x == 0) {
    init_barrier(shared.queries_there, 1);
    init_barrier(shared.queries_done, warps);
    for (uint64_t& there : shared.keys_there) init_barrier(there, 1);
    for (uint64_t& done : shared.keys_done) init_barrier(done, warps);
    publish_barriers();
  }
  __syncthreads();
}

/// Deals the splits of a batch to blocks in turn. All warps of a block find the same.
class SplitDealer {
 public:
  __device__ SplitDealer(const AttentionArguments& a, const Splits& splits, int tile_heads,
                         int n_sequences)
      : count_{a, splits.head_tiles},
        splits_(splits),
        tile_heads_(tile_heads),
        items_(n_sequences, count_) {}

  /// This block's next split. False when there is none. For whole warps.
  __device__ bool next(Split& split) {
    ItemFinder::Item item;
    const int wanted = static_cast<int>(blockIdx.x) + turn_ * static_cast<int>(gridDim.x);
    if (!items_.find(wanted, count_, item)) return false;
    ++turn_;
    const AttentionArguments& a = count_.a;
    const OneQuery one{item.sequence, a.query_start[item.sequence], a.kv_len[item.sequence]};
    split = split_of(a, splits_, tile_heads_, one, item.nth % count_.head_tiles,
                     item.nth / count_.head_tiles);
    return true;
  }

 private:
  struct Count {
    const AttentionArguments& a;
    int head_tiles;

    __device__ int operator()(int sequence) const {
      const int n_queries = a.query_start[sequence + 1] - a.query_start[sequence];
      return n_queries == 1 ? parts_of(a, a.kv_len[sequence]) * head_tiles : 0;
    }
  };

  Count count_;
  const Splits& splits_;
  int tile_heads_;
  ItemFinder items_;
  int turn_ = 0;
};

/// Heads that attention_of_few_heads() takes at most.
inline constexpr int kFewHeads = 32;
void attention_of_few_heads(const AttentionArguments& a, int32_t n_sequences, const Splits& splits,
                            const Queue& queue);

}  // namespace faststream::latent
