// What a block of the prefill kernels works on: a tile of a sequence's queries, for one head.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace faststream {

struct QueryTile {
  int sequence = 0;
  int64_t first_query = 0;  // the sequence's, in the batch
  int n_queries = 0;        // of the sequence in the batch
  int first = 0;            // of the tile, among them
  int first_position = 0;   // of the sequence's first query
  int last_position = 0;    // of the tile's last query
  int head = 0;
  int kv_head = 0;

  /// Nothing to do: past the sequence's end, or a sequence in decode.
  [[nodiscard]] __device__ bool empty() const { return n_queries < 2 || first >= n_queries; }
};

/// The tile of this block in a grid of (tiles, heads, sequences).
inline __device__ QueryTile query_tile(const AttentionArguments& a, int rows) {
  QueryTile tile;
  tile.sequence = static_cast<int>(blockIdx.z);
  tile.first_query = a.query_start[tile.sequence];
  tile.n_queries = static_cast<int>(a.query_start[tile.sequence + 1] - tile.first_query);
  // Late tiles see the most tokens: they start first.
  tile.first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * rows;
  tile.first_position = a.kv_len[tile.sequence] - tile.n_queries;
  tile.last_position = tile.first_position + min(tile.first + rows, tile.n_queries) - 1;
  tile.head = static_cast<int>(blockIdx.y);
  tile.kv_head = tile.head / (a.n_heads / a.kv.n_kv_heads);
  return tile;
}

}  // namespace faststream
