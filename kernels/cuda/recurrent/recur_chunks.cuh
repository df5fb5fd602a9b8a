// What the kernels of chunks share (recur_chunks.cu): what the first one says to the second, what a
// block of that does, and products of a warp that has 8 values of a state.
#pragma once

#include <cstdint>

#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/recurrent/recur.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

inline constexpr int kChunk = kPageTokens;
inline constexpr int kTileEdge = 8;
inline constexpr int kTileElements = kTileEdge * kTileEdge;
inline constexpr int kTokenTiles = kChunk / kTileEdge;
inline constexpr int kTriangle = kTokenTiles * (kTokenTiles + 1) / 2;
static_assert(kChunk == kWarp, "a lane has a token");

// Of a block of the second kernel so many warps have a state.
inline constexpr int kStateWarps = 4;
inline constexpr int kWarpColumns = 8;  // values of a warp
inline constexpr int kColumns = kStateWarps * kWarpColumns;

/// Where tile (i, j), j <= i, of a lower triangle begins.
__device__ constexpr int tile_at(int i, int j) { return (i * (i + 1) / 2 + j) * kTileElements; }

/// What the first kernel says of a head's chunk, in TF32 where it is a factor of products. Matrices
/// are tiles of 8 x 8 of a lower triangle, rows for the token that takes, columns for that which
/// gives.
struct alignas(16) ChunkFactors {
  float writes[kTriangle * kTileElements];  // T diag(β), of the delta rule
  float scores[kTriangle * kTileElements];  // P
  float known[kChunk];                      // of K S
  float seen[kChunk];                       // of Q S
  float written[kChunk];                    // of W's rows in S
  float kept[4];                            // the first: of S
};

/// Chunks that begin in rows [32 first, 32 last) of the batch: the first kernel finds at most one
/// in each 32 rows, whose factors are at `factors` after those of the slots before.
struct ChunkArguments {
  RecurArguments recur;
  int first_slot = 0;
  int last_slot = 0;
  ChunkFactors* factors = nullptr;
  bool is_hopper = false;
  int stages = 0;  // of the second kernel

  [[nodiscard]] __device__ ChunkFactors& factors_of(int64_t row, int head) const {
    return factors[(row / kChunk - first_slot) * recur.recurrence.n_heads + head];
  }
};

/// On Hopper, the second kernel: of bfloat16 and keys of 64 or 128 elements. Returns false, with
/// nothing done, for others.
bool go_on_sm90a(const ChunkArguments& arguments, const Queue& queue);

// Products of a warp with 8 values.
// ---------------------------------------------------------------------------

/// Accumulators of 16 rows by 8 columns, as mma_16x8x16() has them.
using Fragment = float[4];

template <typename T>
__device__ float2 widen_pair(uint32_t pair);
template <>
__device__ inline float2 widen_pair<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}
template <>
__device__ inline float2 widen_pair<__half>(uint32_t pair) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof halves);
  return __half22float2(halves);
}

/// 8 values by 16 columns as left factor of 16 rows: their upper parts, and below them what these
/// leave. So a product is exact but for what two parts leave: of bfloat16 with bfloat16, and of
/// TF32 with f16, whose range sums may exceed, eight columns each.
template <typename T>
struct LeftFactor;
template <>
struct alignas(16) LeftFactor<__nv_bfloat16> {
  uint32_t a[4];
};
template <>
struct alignas(16) LeftFactor<__half> {
  uint32_t first[4];
  uint32_t second[4];
};

/// A lane's two columns of 8 values by 8 columns.
using Pair = float[2];

/// Of eight columns in TF32. What the second part has beyond its bits is cut off.
__device__ inline void left_factor(const Pair& pair, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float upper = round_to_tf32(pair[i]);
    a[2 * i] = __float_as_uint(upper);
    a[2 * i + 1] = __float_as_uint(pair[i] - upper);
  }
}
__device__ inline void left_factor(const Pair& first, const Pair& second,
                                   LeftFactor<__nv_bfloat16>& to) {
  LeftFactor<__nv_bfloat16> factor;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Pair& pair = i == 0 ? first : second;
    const uint32_t upper = pack_pair<__nv_bfloat16>(pair[0], pair[1]);
    const float2 wide = widen_pair<__nv_bfloat16>(upper);
    factor.a[2 * i] = upper;
    factor.a[2 * i + 1] = pack_pair<__nv_bfloat16>(pair[0] - wide.x, pair[1] - wide.y);
  }
  to = factor;
}
__device__ inline void left_factor(const Pair& first, const Pair& second, LeftFactor<__half>& to) {
  LeftFactor<__half> factor;
  left_factor(first, factor.first);
  left_factor(second, factor.second);
  to = factor;
}

__device__ inline void multiply_tf32(Fragment& c, const uint32_t (&a)[4], float2 b) {
  mma_16x8x8(c, a, __float_as_uint(b.x), __float_as_uint(b.y));
}

/// The products of both parts together.
__device__ inline float sum_of_parts(const Fragment& c, int i) { return c[i] + c[i + 2]; }

/// A lane's part of a lower triangle of a chunk's tokens, as right factor.
struct Triangle {
  float2 tiles[kTriangle];

  explicit __device__ Triangle(const float (&from)[kTriangle * kTileElements]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kTriangle; ++i) {
      tiles[i] = *reinterpret_cast<const float2*>(&from[i * kTileElements + 2 * lane]);
    }
  }

  // Its product with a matrix of tokens, transposed.
  __device__ void multiply_by(const Pair (&matrix)[kTokenTiles],
                              Pair (&product)[kTokenTiles]) const {
    Fragment sums[kTokenTiles] = {};
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      uint32_t left[4];
      left_factor(matrix[j], left);
#pragma unroll
      for (int i = j; i < kTokenTiles; ++i) {
        multiply_tf32(sums[i], left, tiles[tile_at(i, j) / kTileElements]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) product[n][i] = sum_of_parts(sums[n], i);
    }
  }
};

/// What the lane's tokens have of numbers of a chunk's.
struct TokenFactors {
  float2 of[kTokenTiles];

  explicit __device__ TokenFactors(const float (&of_tokens)[kChunk]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      of[n] = *reinterpret_cast<const float2*>(&of_tokens[n * kTileEdge + lane % 4 * 2]);
    }
  }
  [[nodiscard]] __device__ float operator()(int n, int i) const {
    return i == 0 ? of[n].x : of[n].y;
  }
};

/// The stage that a chunk has, and the parity of its phases; then the next chunk's.
struct StagePlace {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// What a block does: for 32 values of a head, chunks [first_chunk, last_chunk) of those that a
/// sequence's piece has.
struct ChunkWork {
  int sequence;
  int head;
  int column;  // first of the values
  int first_chunk;
  int last_chunk;
  int64_t first_row;  // the batch's, of the piece's chunks
  TokenSpan pages;    // whole ones

  explicit __device__ ChunkWork(const ChunkArguments& a)
      : sequence(static_cast<int>(blockIdx.z)),
        head(static_cast<int>(blockIdx.y)),
        column(static_cast<int>(blockIdx.x) * kColumns) {
    const BatchView& batch = a.recur.batch;
    const int piece_first = batch.query_start[sequence];
    pages = whole_pages(batch.kv_len[sequence], batch.query_start[sequence + 1] - piece_first);
    first_row = piece_first + pages.begin;
    // Its chunks among those that begin in the slots.
    const int n_chunks = (pages.end - pages.begin) / kChunk;
    const auto before_slot = [&](int slot) {
      const auto rows = static_cast<int>(slot * kChunk - first_row);
      return min(n_chunks, max(0, rows + kChunk - 1) / kChunk);
    };
    first_chunk = before_slot(a.first_slot);
    last_chunk = before_slot(a.last_slot);
  }

  /// The chunk that ends at the border whose state is wanted, or -1.
  [[nodiscard]] __device__ int border_chunk(const BatchView& batch) const {
    if (batch.state_border[sequence] == 0) return -1;
    const int kv_len = batch.kv_len[sequence];
    const int n_tokens = batch.query_start[sequence + 1] - batch.query_start[sequence];
    return (border_of(kv_len) - (kv_len - n_tokens) - pages.begin) / kChunk - 1;
  }

  /// Of the sequence's state number n, calls use(tile, i, element) for those that a lane of warp
  /// `warp` has: value lane / 4 of the warp's, and keys 8 tile + 2 (lane % 4) + i.
  template <int kKeys, typename F>
  __device__ void for_each_element(const ChunkArguments& a, int32_t n, int warp,
                                   const F& use) const {
    const Recurrence& r = a.recur.recurrence;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int first = column + warp * kWarpColumns;
    if (first >= r.value_dim) return;
    float* values = a.recur.states.data + n * a.recur.states.stride +
                    int64_t{head} * r.key_dim * r.value_dim + first + lane / 4;
#pragma unroll
    for (int tile = 0; tile < kKeys / kTileEdge; ++tile) {
      if (tile * kTileEdge >= r.key_dim) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = tile * kTileEdge + lane % 4 * 2 + i;
        use(tile, i, values[int64_t{key} * r.value_dim]);
      }
    }
  }

  [[nodiscard]] __device__ int64_t row_of(int chunk) const {
    return first_row + int64_t{chunk} * kChunk;
  }
  [[nodiscard]] __device__ int64_t first_key(const Recurrence& r) const {
    return int64_t{head / (r.n_heads / r.n_key_heads)} * r.key_dim;
  }
  [[nodiscard]] __device__ int64_t first_value(const Recurrence& r) const {
    return int64_t{head} * r.value_dim + column;
  }
};

/// Stores results of a warp's values for a chunk's tokens, which it has transposed. out: of this
/// lane; tile_rows: elements from one tile of tokens to the next.
template <typename T>
__device__ inline void store_results(const Pair (&results)[kTokenTiles], T* out, int64_t tile_rows,
                                     bool has_columns) {
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const uint32_t pair = transpose_8x8(pack_pair<T>(results[n][0], results[n][1]));
    if (has_columns) *reinterpret_cast<uint32_t*>(out + n * tile_rows) = pair;
  }
}

/// All lanes' accesses come before. compute-sanitizer's racecheck does not see that, and reports
/// hazards unless every lane arrives.
__device__ inline void arrive_as_warp(uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(barrier);
}

}  // namespace faststream
