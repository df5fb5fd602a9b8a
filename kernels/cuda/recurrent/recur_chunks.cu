// Recurrences over whole pages, 32 tokens at a time on the tensor cores: chunks.
//
// With G the sums of a chunk's log decays up to each token, S the matrix before the chunk, and rows
// for tokens, the gated delta rule is (arXiv:2412.06464)
//
//   W = T diag(β) (V - diag(e^G) K S),   T = (I + L)⁻¹,   L_ij = β_i e^(G_i - G_j) k_i·k_j, j < i
//   Y = diag(e^G) Q S + P W,             P_ij = e^(G_i - G_j) q_i·k_j, j <= i
//   S = e^G_last S + Kᵀ diag(e^(G_last - G)) W
//
// and a state space is the same with W = diag(Δ) V. One kernel computes T diag(β), P and the
// factors of rows for all chunks at once; the other passes from chunk to chunk, and has S in
// registers. Keys and queries enter as they are in memory, exact in TF32, and their lengths and
// scales with the factors of rows; S, W and the sums are float32, rounded to TF32 as factors of
// products. Exponents are differences G_i - G_j with j <= i and never above 0.
//
// The second kernel's products are transposed, with values as rows and tokens or keys as columns:
// the accumulators of one product are then the left factor of the next as they are, if a step's
// columns t and t + 4 stand for 2t and 2t + 1, and all right factors are what ldmatrix gives.
//
// Predicted for 8,192 tokens of 32 heads of 128 x 128 on an H100: the first kernel moves 175 MB,
// 0.06 ms. The second, 128 blocks: a warp's 113 products of a chunk take 8 cycles each, and four
// dependent stages (S's products, their exchange, T, P) another 600 cycles: 1,500 cycles, 0.22 ms,
// beside 24 KB a block and chunk from the L2 cache, 0.16 ms. Not measured.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/recurrent/recur.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kChunk = kPageTokens;
constexpr int kTileEdge = 8;
constexpr int kTileElements = kTileEdge * kTileEdge;
constexpr int kTokenTiles = kChunk / kTileEdge;
constexpr int kTriangle = kTokenTiles * (kTokenTiles + 1) / 2;
constexpr int kColumns = 32;      // values of a block of the second kernel
constexpr int kWarpColumns = 16;  // of a warp
constexpr int kPad = 8;           // elements after which rows fall into different banks
constexpr int kMostKeys = 256;
static_assert(kChunk == kWarp, "a lane has a token");

/// Where tile (i, j), j <= i, of a lower triangle begins.
__device__ constexpr int tile_at(int i, int j) { return (i * (i + 1) / 2 + j) * kTileElements; }

// What the first kernel says of a head's chunk, in TF32 where it is a factor of products. Matrices
// are tiles of 8 x 8 of a lower triangle, rows for the token that takes, columns for that which
// gives.
struct alignas(16) ChunkFactors {
  float writes[kTriangle * kTileElements];  // T diag(β), of the delta rule
  float scores[kTriangle * kTileElements];  // P
  float known[kChunk];                      // of K S
  float seen[kChunk];                       // of Q S
  float written[kChunk];                    // of W's rows in S
  float kept[4];                            // the first: of S
};

// Chunks that begin in rows [32 first, 32 last) of the batch: the first kernel finds at most one in
// each 32 rows, whose factors are at `factors` after those of the slots before.
struct ChunkArguments {
  RecurArguments recur;
  int first_slot = 0;
  int last_slot = 0;
  ChunkFactors* factors = nullptr;

  [[nodiscard]] __device__ ChunkFactors& factors_of(int64_t row, int head) const {
    return factors[(row / kChunk - first_slot) * recur.recurrence.n_heads + head];
  }
};

// The first row of the chunk that begins in a slot's rows, or -1. By a warp.
__device__ int chunk_of_slot(const BatchView& batch, int slot) {
  const int row = slot * kChunk + static_cast<int>(threadIdx.x) % kWarp;
  const bool begins = batch.positions[row] % kChunk == 0 &&
                      row + kChunk <= batch.query_start[batch.sequence_of[row] + 1];
  const unsigned found = __ballot_sync(kAllLanes, begins);
  return found == 0 ? -1 : slot * kChunk + __ffs(static_cast<int>(found)) - 1;
}

template <typename T, int kKeys>
using KeyRows = T[kChunk][kKeys + kPad];

// Begins the copy of a chunk's rows of a head, with zeros beyond its `count` elements. By a block.
template <int kWidth, typename T>
__device__ void copy_rows(T (&to)[kChunk][kWidth + kPad], const Matrix& m, int64_t row,
                          int64_t first, int count) {
  constexpr int kUnit = 8;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kWidth / kUnit; i += kThreads) {
    const int token = i / (kWidth / kUnit);
    const int column = i % (kWidth / kUnit) * kUnit;
    const T* from = static_cast<const T*>(m.data) + (row + token) * m.stride + first;
    const bool wanted = column < count;
    copy_async(shared_address(&to[token][column]), from + (wanted ? column : 0), wanted);
  }
}

// 16 rows of `left`, from first_row on, by all of `right`. By a warp.
template <typename T, int kKeys>
__device__ void multiply_rows(const KeyRows<T, kKeys>& left, int first_row,
                              const KeyRows<T, kKeys>& right, float (&to)[kChunk][kChunk + 1]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[kTokenTiles][4] = {};
#pragma unroll 4
  for (int step = 0; step < kKeys; step += 16) {
    uint32_t a[4];
    load_matrices<false>(a, &left[first_row + lane % 16][step + lane / 16 * 8]);
    uint32_t low[4];
    uint32_t high[4];
    load_matrices<false>(low, &right[lane][step]);
    load_matrices<false>(high, &right[lane][step + 8]);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) mma_16x8x16<T>(sums[n], a, low[n], high[n]);
  }
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[first_row + lane / 4 + i / 2 * 8][n * kTileEdge + lane % 4 * 2 + i % 2] = sums[n][i];
    }
  }
}

// What rows are multiplied by. By a block: a warp has 8 rows.
template <typename T, int kKeys>
__device__ void measure_rows(const KeyRows<T, kKeys>& rows, float unit_eps, float scale,
                             float (&factors)[kChunk]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int token = warp; token < kChunk; token += kWarps) {
    float squares = 0;
    for (int i = lane; i < kKeys; i += kWarp) {
      const float x = to_float(rows[token][i]);
      squares = fmaf(x, x, squares);
    }
    const float sum = warp_sum(squares);
    if (lane == 0) factors[token] = unit_eps > 0 ? scale * rsqrtf(sum + unit_eps) : scale;
  }
}

template <typename T, int kKeys>
struct FactorMemory {
  // Rows of L's columns, which have their banks to themselves where lanes write fours.
  static constexpr int kStride = kChunk + 4;
  struct Rows {
    KeyRows<T, kKeys> q;
    KeyRows<T, kKeys> k;
  };
  union alignas(16) {
    Rows rows;
    float columns[kWarps][kChunk][kStride];  // of L, a warp's head each
  };
  float keys[kChunk][kChunk + 1];     // k_i·k_j
  float queries[kChunk][kChunk + 1];  // q_i·k_j
  float key_scales[kChunk];
  float query_scales[kChunk];
};

// Solves (I + L) T = I: a lane has a column, and each row that is known is taken off those below.
// column: of L, shared, as columns.
__device__ void invert(const float (*columns)[kChunk + 4], float (&solution)[kChunk]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) solution[i] = i == lane ? 1.0F : 0.0F;
#pragma unroll
  for (int m = 0; m < kChunk - 1; ++m) {
#pragma unroll
    for (int i = (m + 1) / 4 * 4; i < kChunk; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&columns[m][i]);
      const float factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (i + n > m) solution[i + n] = fmaf(-factors[n], solution[m], solution[i + n]);
      }
    }
  }
}

// A block has up to four heads of a key head, a warp each.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kThreads) chunk_factors_kernel(const ChunkArguments a) {
  begin_kernel();
  __shared__ FactorMemory<T, kKeys> memory;
  const Recurrence& r = a.recur.recurrence;
  const int row = chunk_of_slot(a.recur.batch, a.first_slot + static_cast<int>(blockIdx.x));
  if (row < 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t key_first = int64_t{blockIdx.y} * r.key_dim;

  copy_rows<kKeys>(memory.rows.q, a.recur.q, row, key_first, r.key_dim);
  copy_rows<kKeys>(memory.rows.k, a.recur.k, row, key_first, r.key_dim);
  close_copies();
  wait_for_copies<0>();
  __syncthreads();
  measure_rows<T, kKeys>(memory.rows.q, r.unit_eps, r.query_scale, memory.query_scales);
  measure_rows<T, kKeys>(memory.rows.k, r.unit_eps, 1.0F, memory.key_scales);
  if (warp % 2 == 0) {
    multiply_rows<T, kKeys>(memory.rows.k, warp / 2 * 16, memory.rows.k, memory.keys);
  } else {
    multiply_rows<T, kKeys>(memory.rows.q, warp / 2 * 16, memory.rows.k, memory.queries);
  }
  __syncthreads();

  const int heads = r.n_heads / r.n_key_heads;
  const int of_key_head = static_cast<int>(blockIdx.z) * kWarps + warp;
  if (of_key_head >= heads) return;
  const int head = static_cast<int>(blockIdx.y) * heads + of_key_head;
  const TokenGates gates = gates_of(a.recur, row + lane, head);
  float sum = gates.log_decay;  // G
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += before;
  }
  const float last_sum = __shfl_sync(kAllLanes, sum, kWarp - 1);
  const float key_scale = memory.key_scales[lane];
  const float state_strength = r.delta ? 1.0F : gates.strength;  // W is V itself where not delta
  ChunkFactors& to = a.factors_of(row, head);
  to.known[lane] = expf(sum) * key_scale;
  to.seen[lane] = expf(sum) * memory.query_scales[lane];
  to.written[lane] = expf(last_sum - sum) * key_scale * state_strength;
  if (lane == 0) to.kept[0] = expf(last_sum);

  // From here on a lane has a column of the matrices, its token's: what it gives.
  const int column = lane % kTileEdge;
  float fours[4];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float taken_sum = __shfl_sync(kAllLanes, sum, i);
    const float taken_strength = __shfl_sync(kAllLanes, gates.strength, i);
    const float factor = lane <= i ? expf(taken_sum - sum) * key_scale : 0.0F;
    if (lane / kTileEdge <= i / kTileEdge) {
      const float score = memory.query_scales[i] * memory.queries[i][lane] * factor;
      to.scores[tile_at(i / kTileEdge, lane / kTileEdge) + i % kTileEdge * kTileEdge + column] =
          round_to_tf32(score * state_strength);
    }
    fours[i % 4] =
        lane < i ? taken_strength * memory.key_scales[i] * memory.keys[i][lane] * factor : 0.0F;
    if (i % 4 == 3) {
      *reinterpret_cast<float4*>(&memory.columns[warp][lane][i - 3]) =
          make_float4(fours[0], fours[1], fours[2], fours[3]);
    }
  }
  if (!r.delta) return;
  __syncwarp();
  float solution[kChunk];
  invert(memory.columns[warp], solution);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (lane / kTileEdge <= i / kTileEdge) {
      to.writes[tile_at(i / kTileEdge, lane / kTileEdge) + i % kTileEdge * kTileEdge + column] =
          round_to_tf32(solution[i] * gates.strength);
    }
  }
}

// What the second kernel needs of a chunk.
template <typename T, int kKeys>
struct alignas(16) Stage {
  KeyRows<T, kKeys> q;
  KeyRows<T, kKeys> k;
  T v[kChunk][kColumns + kPad];
  ChunkFactors factors;
};

// Accumulators, and with columns t, t + 4 for 2t, 2t + 1, a left factor: see the file's head.
using Fragment = float[4];

template <typename T, int kKeys>
struct ChunkMemory {
  static constexpr int kStages = kKeys > 128 ? 2 : 3;
  Stage<T, kKeys> stages[kStages];
  // Sums over half of the keys that a warp tells the other one of its columns: of K S, then of Q S
  // for the tokens that the other one finishes.
  float4 sums[kWarps][kTokenTiles + kTokenTiles / 2][kWarp];
};

template <typename T>
__device__ float2 widen_pair(uint32_t pair);
template <>
__device__ float2 widen_pair<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}
template <>
__device__ float2 widen_pair<__half>(uint32_t pair) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof halves);
  return __half22float2(halves);
}

__device__ float4 packed(const Fragment& f) { return make_float4(f[0], f[1], f[2], f[3]); }

__device__ void add(Fragment& to, const float4& other) {
  to[0] += other.x;
  to[1] += other.y;
  to[2] += other.z;
  to[3] += other.w;
}

// A fragment as left factor, its columns multiplied by those of `factors` that belong to the lane.
__device__ void left_factor(const Fragment& f, float2 factors, uint32_t (&a)[4]) {
  a[0] = __float_as_uint(round_to_tf32(f[0] * factors.x));
  a[1] = __float_as_uint(round_to_tf32(f[2] * factors.x));
  a[2] = __float_as_uint(round_to_tf32(f[1] * factors.y));
  a[3] = __float_as_uint(round_to_tf32(f[3] * factors.y));
}

__device__ void multiply(Fragment& c, const uint32_t (&a)[4], float2 b) {
  mma_16x8x8(c, a, __float_as_uint(b.x), __float_as_uint(b.y));
}

// Of each 32 values of a head, a pair of warps has 16: one the first half of the keys, the other
// the second. Both know all of W; each finishes half of the tokens.
template <typename T, int kKeys, bool kDelta>
__global__ void __launch_bounds__(kThreads) chunks_kernel(const ChunkArguments a) {
  begin_kernel();
  using Memory = ChunkMemory<T, kKeys>;
  constexpr int kStages = Memory::kStages;
  constexpr int kKeyTiles = kKeys / 2 / kTileEdge;
  constexpr int kHalfTiles = kTokenTiles / 2;
  extern __shared__ float4 shared_memory[];
  Memory& memory = *reinterpret_cast<Memory*>(shared_memory);

  const Recurrence& r = a.recur.recurrence;
  const BatchView& batch = a.recur.batch;
  const int s = blockIdx.z;
  const int head = blockIdx.y;
  const int piece_first = batch.query_start[s];
  const int n_tokens = batch.query_start[s + 1] - piece_first;
  const int kv_len = batch.kv_len[s];
  const TokenSpan pages = whole_pages(kv_len, n_tokens);
  // Its chunks among those that begin in the slots.
  const int first_row = piece_first + pages.begin;
  const int n_chunks = (pages.end - pages.begin) / kChunk;
  const auto before_slot = [&](int slot) {
    return min(n_chunks, max(0, slot * kChunk - first_row + kChunk - 1) / kChunk);
  };
  const int first_chunk = before_slot(a.first_slot);
  const int last_chunk = before_slot(a.last_slot);
  if (first_chunk == last_chunk) return;

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int pair = lane % 4 * 2;
  const int half = warp % 2;
  const int first_key = half * kKeys / 2;
  const int block_column = static_cast<int>(blockIdx.x) * kColumns;
  const int warp_column = warp / 2 * kWarpColumns;
  const bool has_columns = block_column + warp_column < r.value_dim;
  const int64_t key_first = int64_t{head / (r.n_heads / r.n_key_heads)} * r.key_dim;
  const int64_t value_first = int64_t{head} * r.value_dim + block_column;

  // S, transposed.
  Fragment state[kKeyTiles];
  const auto for_each_element = [&](int32_t n, const auto& use) {
    float* matrix =
        a.recur.states.data + n * a.recur.states.stride + int64_t{head} * r.key_dim * r.value_dim;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      if (!has_columns || first_key + tile * kTileEdge >= r.key_dim) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t key = first_key + tile * kTileEdge + pair + i % 2;
        use(state[tile][i],
            matrix[key * r.value_dim + block_column + warp_column + group + i / 2 * 8]);
      }
    }
  };
  const auto store = [&](int32_t n) {
    for_each_element(n, [](float element, float& to) { to = element; });
  };
#pragma unroll
  for (Fragment& fragment : state) {
#pragma unroll
    for (float& element : fragment) element = 0;
  }
  const bool begins_piece = pages.begin + first_chunk == 0;
  for_each_element(begins_piece ? batch.state_from[s] : batch.state_to[s],
                   [](float& element, float from) { element = from; });

  const auto load = [&](int chunk) {
    if (chunk < last_chunk) {
      Stage<T, kKeys>& stage = memory.stages[chunk % kStages];
      const int row = first_row + chunk * kChunk;
      copy_rows<kKeys>(stage.q, a.recur.q, row, key_first, r.key_dim);
      copy_rows<kKeys>(stage.k, a.recur.k, row, key_first, r.key_dim);
      copy_rows<kColumns>(stage.v, a.recur.v, row, value_first, r.value_dim - block_column);
      const auto* from = reinterpret_cast<const float4*>(&a.factors_of(row, head));
      auto* to = reinterpret_cast<float4*>(&stage.factors);
      constexpr int kSkipped = kDelta ? 0 : kTriangle * kTileElements / 4;
      for (int i = kSkipped + static_cast<int>(threadIdx.x);
           i < static_cast<int>(sizeof(ChunkFactors) / sizeof(float4)); i += kThreads) {
        copy_async(shared_address(to + i), from + i, true);
      }
    }
    close_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) load(first_chunk + i);

  const float skip = r.skips != nullptr ? r.skips[head] : 0.0F;
  const int border = border_of(kv_len) - (kv_len - n_tokens);  // in the piece
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the chunk is there, and nobody reads the one before
    load(chunk + kStages - 1);
    const Stage<T, kKeys>& stage = memory.stages[chunk % kStages];
    const ChunkFactors& factors = stage.factors;
    const auto of_lane = [&](const float* of_tokens, int tile) {
      return *reinterpret_cast<const float2*>(of_tokens + tile * kTileEdge + pair);
    };

    Fragment known[kTokenTiles] = {};  // K S
    Fragment seen[kTokenTiles] = {};   // Q S
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      uint32_t left[4];
      left_factor(state[tile], {1.0F, 1.0F}, left);
      uint32_t queries[4];
      load_matrices<false>(queries, &stage.q[lane][first_key + tile * kTileEdge]);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) multiply(seen[n], left, widen_pair<T>(queries[n]));
      if constexpr (kDelta) {
        uint32_t keys[4];
        load_matrices<false>(keys, &stage.k[lane][first_key + tile * kTileEdge]);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) multiply(known[n], left, widen_pair<T>(keys[n]));
      }
    }

    // The other half of the keys. A sum of two does not depend on which warp has which.
    auto& mine = memory.sums[warp];
    const auto& theirs = memory.sums[warp ^ 1];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if constexpr (kDelta) mine[n][lane] = packed(known[n]);
      if (n / kHalfTiles != half) mine[kTokenTiles + n % kHalfTiles][lane] = packed(seen[n]);
    }
    synchronize_threads(1 + warp / 2, 2 * kWarp);

    // V, then V - e^G K S, then W.
    Fragment written[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      uint32_t values[4];  // of two tiles of tokens, the first and the last 8 values of each
      load_matrices<true>(
          values,
          &stage.v[n * kTileEdge + lane / 16 * 8 + lane % 8][warp_column + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = widen_pair<T>(values[i]);
        written[n + i / 2][i % 2 * 2] = two.x;
        written[n + i / 2][i % 2 * 2 + 1] = two.y;
      }
    }
    Fragment finished[kHalfTiles];  // Y, of the warp's half of the tokens
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (n / kHalfTiles != half) continue;
      Fragment& y = finished[n % kHalfTiles];
      add(seen[n], theirs[kTokenTiles + n % kHalfTiles][lane]);
      const float2 factor = of_lane(factors.seen, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y[i] = fmaf(i % 2 == 0 ? factor.x : factor.y, seen[n][i], skip * written[n][i]);
      }
    }
    uint32_t left[kTokenTiles][4];
    if constexpr (kDelta) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        add(known[n], theirs[n][lane]);
        const float2 factor = of_lane(factors.known, n);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          written[n][i] = fmaf(-(i % 2 == 0 ? factor.x : factor.y), known[n][i], written[n][i]);
        }
        left_factor(written[n], {1.0F, 1.0F}, left[n]);
#pragma unroll
        for (float& element : written[n]) element = 0;
      }
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
        for (int i = j; i < kTokenTiles; ++i) {
          multiply(written[i], left[j],
                   *reinterpret_cast<const float2*>(&factors.writes[tile_at(i, j) + 2 * lane]));
        }
      }
    }

#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      left_factor(written[j], {1.0F, 1.0F}, left[j]);
#pragma unroll
      for (int i = j; i < kTokenTiles; ++i) {
        if (i / kHalfTiles != half) continue;
        multiply(finished[i % kHalfTiles], left[j],
                 *reinterpret_cast<const float2*>(&factors.scores[tile_at(i, j) + 2 * lane]));
      }
    }
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      left_factor(written[j], of_lane(factors.written, j), left[j]);
    }
    const float kept = factors.kept[0];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (float& element : state[tile]) element *= kept;
      uint32_t keys[4];
      load_matrices<true>(keys, &stage.k[lane][first_key + tile * kTileEdge]);
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) multiply(state[tile], left[j], widen_pair<T>(keys[j]));
    }

    const int64_t row = first_row + chunk * kChunk + half * kChunk / 2;
#pragma unroll
    for (int n = 0; n < kHalfTiles; ++n) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const uint32_t values =
            transpose_8x8(pack_pair<T>(finished[n][2 * eight], finished[n][2 * eight + 1]));
        T* to = static_cast<T*>(a.recur.out.data) +
                (row + n * kTileEdge + group) * a.recur.out.stride + value_first + warp_column +
                eight * 8 + pair;
        if (has_columns) *reinterpret_cast<uint32_t*>(to) = values;
      }
    }
    if (batch.state_border[s] != 0 && pages.begin + (chunk + 1) * kChunk == border) {
      store(batch.state_border[s]);
    }
  }
  store(batch.state_to[s]);
}

template <typename T, int kKeys, bool kDelta>
void go_on(const ChunkArguments& a, const Queue& queue) {
  constexpr size_t kBytes = sizeof(ChunkMemory<T, kKeys>);
  const Recurrence& r = a.recur.recurrence;
  const Grid grid{
      {static_cast<unsigned>(ceil_div(r.value_dim, kColumns)), static_cast<unsigned>(r.n_heads),
       static_cast<unsigned>(a.recur.batch.n_sequences)},
      kThreads,
      kBytes};
  allow_shared_memory(chunks_kernel<T, kKeys, kDelta>, kBytes);
  queue.launch("going on with states", chunks_kernel<T, kKeys, kDelta>, grid, a);
}

template <typename T, int kKeys = 64>
void launch(const ChunkArguments& a, const Queue& queue) {
  const Recurrence& r = a.recur.recurrence;
  if constexpr (kKeys < kMostKeys) {
    if (r.key_dim > kKeys) return launch<T, 2 * kKeys>(a, queue);
  }
  const Grid grid{
      {static_cast<unsigned>(a.last_slot - a.first_slot), static_cast<unsigned>(r.n_key_heads),
       static_cast<unsigned>(ceil_div(r.n_heads / r.n_key_heads, kWarps))},
      kThreads};
  queue.launch("preparing chunks", chunk_factors_kernel<T, kKeys>, grid, a);
  if (r.delta) {
    go_on<T, kKeys, true>(a, queue);
  } else {
    go_on<T, kKeys, false>(a, queue);
  }
}

bool rows_fit(const Matrix& m, DType dtype) {
  return m.dtype == dtype && m.stride % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

}  // namespace

bool chunks_fit(const RecurArguments& a) {
  const DType dtype = a.q.dtype;
  const Recurrence& r = a.recurrence;
  return !r.by_channel && (dtype == DType::f16 || dtype == DType::bf16) && rows_fit(a.q, dtype) &&
         rows_fit(a.k, dtype) && rows_fit(a.v, dtype) && a.out.dtype == dtype &&
         a.out.stride % 2 == 0 && reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0 &&
         r.key_dim % 16 == 0 && r.key_dim <= kMostKeys && r.value_dim % kWarpColumns == 0;
}

ScratchPiece chunks_piece(int64_t chunks, int64_t heads) {
  if (chunks == 0 || heads == 0) return {};
  return piece_of(chunks, static_cast<size_t>(heads) * sizeof(ChunkFactors), 1);
}

void recur_chunks(const RecurArguments& arguments, std::byte* scratch, const Queue& queue) {
  const int64_t slots = arguments.batch.n_tokens / kChunk;
  const ScratchPiece piece = chunks_piece(slots, arguments.recurrence.n_heads);
  for (int64_t first = 0; first < slots; first += piece.rows) {
    const ChunkArguments a{arguments, static_cast<int>(first),
                           static_cast<int>(std::min(slots, first + piece.rows)),
                           reinterpret_cast<ChunkFactors*>(scratch)};
    if (arguments.q.dtype == DType::bf16) {
      launch<__nv_bfloat16>(a, queue);
    } else {
      launch<__half>(a, queue);
    }
  }
}

}  // namespace faststream
