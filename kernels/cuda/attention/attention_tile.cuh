// What a block of the prefill kernels works on: a tile of a sequence's queries, for one head.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/item_finder.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

struct QueryTile {
  int sequence = 0;
  int64_t first_query = 0;  // the sequence's, in the batch
  int n_queries = 0;        // of the sequence in the batch
  int first = 0;            // of the tile, among them
  int first_position = 0;   // of the sequence's first query
  int n_tokens = 0;         // of the sequence, cached
  int last_token = 0;       // that one of the tile's queries sees
  int head = 0;
  int kv_head = 0;

  /// Nothing to do: past the sequence's end, or a sequence in decode.
  [[nodiscard]] __device__ bool empty() const { return n_queries < 2 || first >= n_queries; }
};

/// The last of n_tokens tokens that the query at `position` sees.
inline __device__ int last_seen(const AttentionRule& rule, int position, int n_tokens) {
  if (!rule.bidirectional) return position;
  return rule.window == 0 ? n_tokens - 1 : min(n_tokens, position + rule.window) - 1;
}

/// The tile from query `first` on of a sequence with n_queries, for `head`.
inline __device__ QueryTile query_tile(const AttentionArguments& a, int rows, int sequence,
                                       int n_queries, int first, int head) {
  QueryTile tile;
  tile.sequence = sequence;
  tile.first_query = a.query_start[sequence];
  tile.n_queries = n_queries;
  tile.first = first;
  tile.n_tokens = a.kv_len[sequence];
  tile.first_position = tile.n_tokens - n_queries;
  tile.last_token =
      last_seen(a.rule, tile.first_position + min(first + rows, n_queries) - 1, tile.n_tokens);
  tile.head = head;
  tile.kv_head = head / (a.n_heads / a.kv.n_kv_heads);
  return tile;
}

/// The tile of this block in a grid of (tiles, heads, sequences).
inline __device__ QueryTile query_tile(const AttentionArguments& a, int rows) {
  const auto sequence = static_cast<int>(blockIdx.z);
  // Late tiles see the most tokens: they start first.
  return query_tile(a, rows, sequence, a.query_start[sequence + 1] - a.query_start[sequence],
                    static_cast<int>(gridDim.x - 1 - blockIdx.x) * rows,
                    static_cast<int>(blockIdx.y));
}

/// Deals the tiles of a batch to blocks that stay: those of a sequence in a row, late ones first,
/// as they see the most tokens; to the blocks in turn, forwards, then backwards, so that who had
/// the largest gets the smallest next. All warps of a block find the same.
class TileDealer {
 public:
  __device__ TileDealer(const AttentionArguments& a, int n_sequences, int rows)
      : count_{a, rows}, items_(n_sequences, count_) {}

  /// This block's next tile. False when there is none. For whole warps.
  __device__ bool next(QueryTile& tile) {
    const auto blocks = static_cast<int>(gridDim.x);
    const auto block = static_cast<int>(blockIdx.x);
    const int wanted = turn_ * blocks + (turn_ % 2 == 0 ? block : blocks - 1 - block);
    ++turn_;
    ItemFinder::Item item;
    if (!items_.find(wanted, count_, item)) return false;
    const AttentionArguments& a = count_.a;
    const int until_end = item.count - item.nth - 1;
    tile = query_tile(a, count_.rows, item.sequence, count_.queries(item.sequence),
                      until_end / a.n_heads * count_.rows, until_end % a.n_heads);
    return true;
  }

 private:
  struct Count {
    const AttentionArguments& a;
    int rows;

    [[nodiscard]] __device__ int queries(int sequence) const {
      return a.query_start[sequence + 1] - a.query_start[sequence];
    }
    __device__ int operator()(int sequence) const {
      const int n_queries = queries(sequence);
      return n_queries >= a.least_queries ? ceil_div(n_queries, rows) * a.n_heads : 0;
    }
  };

  Count count_;
  ItemFinder items_;
  int turn_ = 0;
};

}  // namespace faststream
