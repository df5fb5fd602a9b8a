// What a block of the prefill kernels works on: a tile of a sequence's queries, for one head.
#pragma once

#include "kernels/cuda/attention/attention.h"
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
      : a_(a), n_sequences_(n_sequences), rows_(rows) {
    count();
  }

  /// This block's next tile. False when there is none. For whole warps.
  __device__ bool next(QueryTile& tile) {
    const auto blocks = static_cast<int>(gridDim.x);
    const auto block = static_cast<int>(blockIdx.x);
    const int wanted = turn_ * blocks + (turn_ % 2 == 0 ? block : blocks - 1 - block);
    ++turn_;
    while (wanted >= before_ + __shfl_sync(kAllLanes, until_, kWarp - 1)) {
      before_ += __shfl_sync(kAllLanes, until_, kWarp - 1);
      first_sequence_ += kWarp;
      if (first_sequence_ >= n_sequences_) return false;
      count();
    }
    const int lane = __ffs(__ballot_sync(kAllLanes, wanted - before_ < until_)) - 1;
    const int n_queries = __shfl_sync(kAllLanes, n_queries_, lane);
    const int until_end = __shfl_sync(kAllLanes, until_, lane) - (wanted - before_) - 1;
    tile = query_tile(a_, rows_, first_sequence_ + lane, n_queries, until_end / a_.n_heads * rows_,
                      until_end % a_.n_heads);
    return true;
  }

 private:
  // Each lane its sequence's queries, and the tiles of those up to it.
  __device__ void count() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int sequence = first_sequence_ + lane;
    n_queries_ =
        sequence < n_sequences_ ? a_.query_start[sequence + 1] - a_.query_start[sequence] : 0;
    until_ = n_queries_ > 1 ? ceil_div(n_queries_, rows_) * a_.n_heads : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, until_, step);
      if (lane >= step) until_ += below;
    }
  }

  const AttentionArguments& a_;
  int n_sequences_;
  int rows_;
  int turn_ = 0;
  int first_sequence_ = 0;  // of the warp's 32
  int before_ = 0;          // tiles of the sequences before them
  int until_ = 0;           // tiles of them up to this lane's
  int n_queries_ = 0;       // of this lane's
};

}  // namespace faststream
