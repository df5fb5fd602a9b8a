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
// registers. Keys and queries enter as they are in memory, and their lengths and scales with the
// factors of rows; S, W and the sums are float32, as factors of products sums of two parts; T and P
// are rounded to TF32. Exponents are differences G_i - G_j with j <= i and never above 0.
//
// The second kernel's products are transposed, with values as rows and tokens or keys as columns:
// the accumulators of one product are then the left factor of the next as they are, if in TF32 a
// step's columns t and t + 4 stand for 2t and 2t + 1, and all right factors are what ldmatrix
// gives. An instruction's 16 rows are the upper parts of 8 values and what is left of them, so that
// a warp has only 8 values and all of a multiprocessor's warps have some: 32 heads of 128 values
// are 512 warps, as many as an H100 has schedulers, and how long a prompt takes is how long one of
// them takes from chunk to chunk.
//
// Two warps have the same values: one goes on with S, the other makes the outputs of what that one
// sends it. For 8,192 tokens on an H100 both kernels take 0.29 ms for state spaces, 64 heads of
// 128 x 64, where one warp for both took 0.38. The delta rule, of 32 heads of 128 x 128, whose W
// waits for K S in each chunk, takes 0.39 as before: 0.05 for the first kernel, which moves 112 MB,
// and 2,300 cycles a chunk, most of them waits for shared memory, from which each warp loads all
// keys. On Hopper warpgroups do what takes bfloat16 and most models' keys (recur_chunks_sm90a.cu).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/recurrent/recur_chunks.cuh"

namespace faststream {

namespace {

constexpr int kFactorWarps = 2;
// Of a block of the second kernel as many warps as have a state make outputs, and one copies.
constexpr int kWarps = kStateWarps;
constexpr int kThreads = (2 * kWarps + 1) * kWarp;
constexpr int kMessages = 2;    // between two warps at a time
constexpr int kMostStages = 4;  // chunks that are copied ahead
constexpr int kPad = 8;         // elements after which rows fall into different banks
constexpr int kMostKeys = 256;
constexpr float kLog2E = 1.44269504F;

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

// What a lane copies of chunks' rows of a matrix, kColumns columns from `first` on, with zeros
// beyond `count`.
template <typename T, int kColumns>
class RowCopies {
 public:
  // From the chunk that begins in `row` on.
  __device__ RowCopies(const Matrix& m, int64_t row, int64_t first, int count)
      : stride_(m.stride),
        token_(lane() / kUnits),
        column_(lane() % kUnits * kUnit),
        wanted_(column_ < count),
        from_(static_cast<const T*>(m.data) + (row + token_) * m.stride + first +
              (wanted_ ? column_ : 0)) {}

  // Begins the next chunk's.
  __device__ void begin(T (&to)[kChunk][kColumns + kPad]) {
#pragma unroll
    for (int token = 0; token < kChunk; token += kRows) {
      copy_async(shared_address(&to[token_ + token][column_]), from_, wanted_);
      from_ += kRows * stride_;
    }
  }

 private:
  static constexpr int kUnit = 8;                  // elements that a lane copies at a time
  static constexpr int kUnits = kColumns / kUnit;  // of a row
  static constexpr int kRows = kWarp / kUnits;     // at a time
  static_assert(kWarp % kUnits == 0);
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  int64_t stride_;
  int token_;
  int column_;
  bool wanted_;
  const T* from_;
};

// `left` by `right`, in accumulators of 16 rows; and what the rows of `left` are multiplied by,
// `scale` or, if unit_eps is above 0, as much over their lengths. By a warp.
template <typename T, int kKeys>
__device__ void multiply_rows(const KeyRows<T, kKeys>& left, const KeyRows<T, kKeys>& right,
                              Fragment (&products)[2][kTokenTiles], float unit_eps, float scale,
                              float (&scales)[kChunk]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float squares[2][2] = {};  // of rows lane / 4 and that + 8, a quarter each
#pragma unroll 2
  for (int step = 0; step < kKeys; step += 16) {
    uint32_t low[4];
    uint32_t high[4];
    load_matrices<false>(low, &right[lane][step]);
    load_matrices<false>(high, &right[lane][step + 8]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      load_matrices<false>(a, &left[half * 16 + lane % 16][step + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        mma_16x8x16<T>(products[half][n], a, low[n], high[n]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = widen_pair<T>(a[i]);
        float& sum = squares[half][i % 2];
        sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = squares[i / 2][i % 2];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (lane % 4 == 0) {
      scales[lane / 4 + i * 8] = unit_eps > 0 ? scale * rsqrtf(sum + unit_eps) : scale;
    }
  }
}

using Square = float[kChunk][kChunk + 1];

template <typename T, int kKeys>
struct FactorMemory {
  // Rows of L's columns, which have their banks to themselves where lanes write fours.
  static constexpr int kStride = kChunk + 4;
  struct Rows {
    KeyRows<T, kKeys> k;
    KeyRows<T, kKeys> q;
  };
  struct Products {
    Square keys;                                               // k_i·k_j
    Square queries;                                            // q_i·k_j
    alignas(16) float columns[kFactorWarps][kChunk][kStride];  // of L, a warp's head each
  };
  union alignas(16) {
    Rows rows;
    Products products;  // then
  };
  float key_scales[kChunk];
  float query_scales[kChunk];
  float4 factors[kFactorWarps][kChunk];  // of rows: G in powers of two, of L, of P
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

// A block's two warps multiply keys and queries, and then have a head each, of one key head.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kFactorWarps* kWarp)
    chunk_factors_kernel(const ChunkArguments a) {
  wait_for_inputs();
  __shared__ FactorMemory<T, kKeys> memory;
  const Recurrence& r = a.recur.recurrence;
  const int row = chunk_of_slot(a.recur.batch, a.first_slot + static_cast<int>(blockIdx.x));
  if (row < 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool has_keys = warp == 0;
  const int64_t key_first = int64_t{blockIdx.y} * r.key_dim;
  auto& own_rows = has_keys ? memory.rows.k : memory.rows.q;
  RowCopies<T, kKeys>(has_keys ? a.recur.k : a.recur.q, row, key_first, r.key_dim).begin(own_rows);
  close_copies();

  const int heads = r.n_heads / r.n_key_heads;
  const int of_key_head = static_cast<int>(blockIdx.z) * kFactorWarps + warp;
  const int head = static_cast<int>(blockIdx.y) * heads + min(of_key_head, heads - 1);
  const TokenGates gates = gates_of(a.recur, row + lane, head);
  float sum = gates.log_decay * kLog2E;  // G, in powers of two
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += before;
  }
  const float last_sum = __shfl_sync(kAllLanes, sum, kWarp - 1);

  wait_for_copies<0>();
  __syncthreads();
  Fragment found[2][kTokenTiles] = {};
  multiply_rows<T, kKeys>(own_rows, memory.rows.k, found, r.unit_eps,
                          has_keys ? 1.0F : r.query_scale,
                          has_keys ? memory.key_scales : memory.query_scales);
  __syncthreads();
  Square& square = has_keys ? memory.products.keys : memory.products.queries;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        square[half * 16 + lane / 4 + i / 2 * 8][n * kTileEdge + lane % 4 * 2 + i % 2] =
            found[half][n][i];
      }
    }
  }
  __syncthreads();
  if (of_key_head >= heads) return;

  const float key_scale = memory.key_scales[lane];
  const float query_scale = memory.query_scales[lane];
  // W is V itself where not delta.
  const float given = key_scale * (r.delta ? 1.0F : gates.strength);
  ChunkFactors& to = a.factors_of(row, head);
  to.known[lane] = exp2f(sum) * key_scale;
  to.seen[lane] = exp2f(sum) * query_scale;
  to.written[lane] = exp2f(last_sum - sum) * given;
  if (lane == 0) to.kept[0] = exp2f(last_sum);
  float4(&rows)[kChunk] = memory.factors[warp];
  rows[lane] = make_float4(sum, gates.strength * key_scale, query_scale, 0);
  __syncwarp();

  // From here on a lane has a column of the matrices, its token's: what it gives.
  const auto place = [&](int i) {
    return tile_at(i / kTileEdge, lane / kTileEdge) + i % kTileEdge * kTileEdge + lane % kTileEdge;
  };
  auto& columns = memory.products.columns[warp];
#pragma unroll
  for (int first = 0; first < kChunk; first += 4) {
    float fours[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int i = first + n;
      const float4 taken = rows[i];
      const float decayed = power_of_two(taken.x - sum) * given;
      const float score = taken.z * memory.products.queries[i][lane] * decayed;
      if (lane / kTileEdge <= i / kTileEdge) {
        to.scores[place(i)] = round_to_tf32(lane <= i ? score : 0.0F);
      }
      const float written = taken.y * memory.products.keys[i][lane] * decayed;
      fours[n] = lane < i ? written : 0.0F;
    }
    *reinterpret_cast<float4*>(&columns[lane][first]) =
        make_float4(fours[0], fours[1], fours[2], fours[3]);
  }
  if (r.delta) {
    __syncwarp();
    float solution[kChunk];
    invert(columns, solution);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (lane / kTileEdge <= i / kTileEdge) {
        to.writes[place(i)] = round_to_tf32(solution[i] * gates.strength);
      }
    }
  }
  // Not before, or the next kernel's blocks, of which each multiprocessor is to have one, would go
  // where there is room first.
  allow_next_kernel();
}

__device__ void multiply(Fragment& c, const LeftFactor<__nv_bfloat16>& a, uint32_t b0,
                         uint32_t b1) {
  mma_16x8x16<__nv_bfloat16>(c, a.a, b0, b1);
}
__device__ void multiply(Fragment& c, const LeftFactor<__half>& a, uint32_t b0, uint32_t b1) {
  multiply_tf32(c, a.first, widen_pair<__half>(b0));
  multiply_tf32(c, a.second, widen_pair<__half>(b1));
}

// S of a warp's values, transposed.
template <int kKeys>
using State = Pair[kKeys / kTileEdge];

// Two tiles of tokens by 16 keys.
template <typename T, int kKeys>
__device__ void load_keys(uint32_t (&to)[2][4], const KeyRows<T, kKeys>& rows, int first_key) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_matrices<false>(to[i], &rows[i * 2 * kTileEdge + lane / 16 * kTileEdge + lane % 8]
                                     [first_key + lane / 8 % 2 * kTileEdge]);
  }
}

// K S or Q S, transposed. `state`: of S, each lane's.
template <typename T, int kKeys>
__device__ void multiply_state(const LeftFactor<T> (&state)[kKeys / 16][kWarp],
                               const KeyRows<T, kKeys>& rows, Fragment (&product)[kTokenTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 4  // else ptxas has a tile of tokens wait for another
  for (int step = 0; step < kKeys / 16; ++step) {
    const LeftFactor<T> left = state[step][lane];
    uint32_t right[2][4];
    load_keys<T, kKeys>(right, rows, step * 16);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      multiply(product[n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// S becomes kept S + Kᵀ W, transposed.
template <typename T, int kKeys>
__device__ void write_state(State<kKeys>& state, float kept, const Pair (&written)[kTokenTiles],
                            const KeyRows<T, kKeys>& keys) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LeftFactor<T> left[kTokenTiles / 2];
#pragma unroll
  for (int n = 0; n < kTokenTiles; n += 2) left_factor(written[n], written[n + 1], left[n / 2]);
  constexpr int kTogether = 8;  // so that a product need not wait for the one before
#pragma unroll
  for (int tile = 0; tile < kKeys / kTileEdge; tile += kTogether) {
    uint32_t rows[kTogether][4];  // tiles of tokens
    Fragment sums[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      load_matrices<true>(rows[i], &keys[lane][(tile + i) * kTileEdge]);
      sums[i][0] = kept * state[tile + i][0];
      sums[i][1] = kept * state[tile + i][1];
      sums[i][2] = sums[i][3] = 0;
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        multiply(sums[i], left[n / 2], rows[i][n], rows[i][n + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) state[tile + i][j] = sum_of_parts(sums[i], j);
    }
  }
}

// Two warps of a block share 8 values: a keeper has S and goes from chunk to chunk; a reader has
// from it what makes the outputs, S before a chunk and W, while it goes on. One more warp copies
// what they need next.
template <typename T, int kKeys>
struct Block {
  struct alignas(16) Stage {
    KeyRows<T, kKeys> q;
    KeyRows<T, kKeys> k;
    T v[kChunk][kColumns + kPad];
    ChunkFactors factors;
  };
  // From a keeper to its reader, lane by lane. The barriers' phases end when it is there, and when
  // the reader has taken it.
  struct alignas(16) Message {
    LeftFactor<T> state[kKeys / 16][kWarp];  // S before a chunk
    float4 written[kTokenTiles / 2][kWarp];  // W, two tiles of tokens
    uint64_t state_sent;
    uint64_t written_sent;
    uint64_t taken;
  };
  struct Memory {
    Message messages[kWarps][kMessages];
    uint64_t copied[kMostStages];
    uint64_t used[kMostStages];
    Stage stages[kMostStages];  // as many as a multiprocessor has room for
  };

  static int stages_that_fit() {
    const auto room = static_cast<size_t>(gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    const size_t taken = offsetof(Memory, stages);
    return room < taken
               ? 0
               : static_cast<int>(std::min<size_t>(kMostStages, (room - taken) / sizeof(Stage)));
  }
};

// Copies what each chunk needs, as soon as there is room. By a warp.
template <typename T, int kKeys, bool kDelta>
__device__ void copy_chunks(const ChunkArguments& a, const ChunkWork& work,
                            typename Block<T, kKeys>::Memory& memory) {
  const Recurrence& r = a.recur.recurrence;
  const int64_t row = work.row_of(work.first_chunk);
  RowCopies<T, kKeys> k(a.recur.k, row, work.first_key(r), r.key_dim);
  RowCopies<T, kKeys> q(a.recur.q, row, work.first_key(r), r.key_dim);
  RowCopies<T, kColumns> v(a.recur.v, row, work.first_value(r), r.value_dim - work.column);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kFours = sizeof(ChunkFactors) / sizeof(float4);
  constexpr int kSkipped = kDelta ? 0 : sizeof(ChunkFactors::writes) / sizeof(float4);
  const auto* factors = reinterpret_cast<const float4*>(&a.factors_of(row, work.head));
  StagePlace place;
  for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
    auto& stage = memory.stages[place.stage];
    wait_for_phase(memory.used[place.stage], place.parity ^ 1);
    k.begin(stage.k);
    v.begin(stage.v);
    q.begin(stage.q);
    auto* to = reinterpret_cast<float4*>(&stage.factors);
#pragma unroll
    for (int first = kSkipped; first < kFours; first += kWarp) {
      const int i = first + lane;
      if (i < kFours) copy_async(shared_address(to + i), factors + i, true);
    }
    factors += int64_t{r.n_heads} * kFours;
    arrive_when_copied(memory.copied[place.stage]);
    place.advance(a.stages);
  }
  close_copies();
  wait_for_copies<0>();
}

// V of a warp's values, transposed.
template <typename Stage>
__device__ void load_values(const Stage& stage, int warp_column, Pair (&values)[kTokenTiles]) {
  using T = std::remove_cvref_t<decltype(stage.v[0][0])>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t narrow[kTokenTiles];
  load_matrices<true>(narrow, &stage.v[lane][warp_column]);
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const float2 two = widen_pair<T>(narrow[n]);
    values[n][0] = two.x;
    values[n][1] = two.y;
  }
}

template <typename T, int kKeys, bool kDelta>
__device__ void keep_state(const ChunkArguments& a, const ChunkWork& work, int warp,
                           typename Block<T, kKeys>::Memory& memory) {
  const BatchView& batch = a.recur.batch;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_column = warp * kWarpColumns;

  State<kKeys> state = {};
  const auto store = [&](int32_t n) {
    work.for_each_element<kKeys>(a, n, warp,
                                 [&](int tile, int i, float& to) { to = state[tile][i]; });
  };
  const bool begins_piece = work.pages.begin + work.first_chunk == 0;
  work.for_each_element<kKeys>(
      a, begins_piece ? batch.state_from[work.sequence] : batch.state_to[work.sequence], warp,
      [&](int tile, int i, float from) { state[tile][i] = from; });
  const int border_chunk = work.border_chunk(batch);
  StagePlace place;
  for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
    const PipelinePlace<kMessages> sending(chunk - work.first_chunk);
    auto& message = memory.messages[warp][sending.stage];
    wait_for_phase(message.taken, sending.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      left_factor(state[2 * i], state[2 * i + 1], message.state[i][lane]);
    arrive_as_warp(message.state_sent);

    const auto& stage = memory.stages[place.stage];
    const ChunkFactors& factors = stage.factors;
    wait_for_phase(memory.copied[place.stage], place.parity);
    Pair written[kTokenTiles];  // V, then V - e^G K S, then W
    load_values(stage, warp_column, written);
    if constexpr (kDelta) {
      const TokenFactors of_known(factors.known);
      Fragment known[kTokenTiles] = {};
      multiply_state<T, kKeys>(message.state, stage.k, known);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          written[n][i] = fmaf(-of_known(n, i), sum_of_parts(known[n], i), written[n][i]);
        }
      }
      Triangle(factors.writes).multiply_by(written, written);
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += 2) {
        message.written[n / 2][lane] =
            make_float4(written[n][0], written[n][1], written[n + 1][0], written[n + 1][1]);
      }
      arrive_as_warp(message.written_sent);
    }
    const TokenFactors of_written(factors.written);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) written[n][i] *= of_written(n, i);
    }
    write_state<T, kKeys>(state, factors.kept[0], written, stage.k);
    arrive_as_warp(memory.used[place.stage]);
    place.advance(a.stages);
    if (chunk == border_chunk) store(batch.state_border[work.sequence]);
  }
  store(batch.state_to[work.sequence]);
}

template <typename T, int kKeys, bool kDelta>
__device__ void make_outputs(const ChunkArguments& a, const ChunkWork& work, int warp,
                             typename Block<T, kKeys>::Memory& memory) {
  const Recurrence& r = a.recur.recurrence;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_column = warp * kWarpColumns;
  const bool has_columns = work.column + warp_column < r.value_dim;
  const float skip = r.skips != nullptr ? r.skips[work.head] : 0.0F;
  const int64_t tile_rows = kTileEdge * a.recur.out.stride;
  T* out = static_cast<T*>(a.recur.out.data) +
           (work.row_of(work.first_chunk) + lane / 4) * a.recur.out.stride + work.first_value(r) +
           warp_column + lane % 4 * 2;
  StagePlace place;
  for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
    const auto& stage = memory.stages[place.stage];
    wait_for_phase(memory.copied[place.stage], place.parity);
    const TokenFactors of_seen(stage.factors.seen);
    Pair written[kTokenTiles];  // V, then W
    load_values(stage, warp_column, written);

    const PipelinePlace<kMessages> sending(chunk - work.first_chunk);
    auto& message = memory.messages[warp][sending.stage];
    wait_for_phase(message.state_sent, sending.parity);
    Fragment seen[kTokenTiles] = {};  // Q S
    multiply_state<T, kKeys>(message.state, stage.q, seen);
    Pair results[kTokenTiles];  // Y
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        results[n][i] = fmaf(of_seen(n, i), sum_of_parts(seen[n], i), skip * written[n][i]);
      }
    }
    if constexpr (kDelta) {
      wait_for_phase(message.written_sent, sending.parity);
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += 2) {
        const float4 four = message.written[n / 2][lane];
        written[n][0] = four.x;
        written[n][1] = four.y;
        written[n + 1][0] = four.z;
        written[n + 1][1] = four.w;
      }
    }
    arrive_as_warp(message.taken);
    Pair scored[kTokenTiles];
    Triangle(stage.factors.scores).multiply_by(written, scored);
    arrive_as_warp(memory.used[place.stage]);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) results[n][i] += scored[n][i];
    }
    store_results(results, out, tile_rows, has_columns);
    out += kTokenTiles * tile_rows;
    place.advance(a.stages);
  }
}

template <typename T, int kKeys, bool kDelta>
__global__ void __launch_bounds__(kThreads) chunks_kernel(const ChunkArguments a) {
  using Memory = typename Block<T, kKeys>::Memory;
  extern __shared__ float4 shared_memory[];
  Memory& memory = *reinterpret_cast<Memory*>(shared_memory);
  begin_kernel();
  const ChunkWork work(a);
  if (work.first_chunk == work.last_chunk) return;

  if (threadIdx.x == 0) {
    for (uint64_t& copied : memory.copied) init_barrier(copied, kWarp);
    for (uint64_t& used : memory.used) init_barrier(used, 2 * kWarps);
    for (auto& of_warp : memory.messages) {
      for (auto& message : of_warp) {
        init_barrier(message.state_sent, 1);
        init_barrier(message.written_sent, 1);
        init_barrier(message.taken, 1);
      }
    }
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < kWarps) {
    keep_state<T, kKeys, kDelta>(a, work, warp, memory);
  } else if (warp < 2 * kWarps) {
    make_outputs<T, kKeys, kDelta>(a, work, warp - kWarps, memory);
  } else {
    copy_chunks<T, kKeys, kDelta>(a, work, memory);
  }
}

template <typename T, int kKeys, bool kDelta>
void go_on(ChunkArguments a, const Queue& queue) {
  using Memory = typename Block<T, kKeys>::Memory;
  a.stages = Block<T, kKeys>::stages_that_fit();
  const size_t bytes = offsetof(Memory, stages) + a.stages * sizeof(Memory::stages[0]);
  const Recurrence& r = a.recur.recurrence;
  const Grid grid{
      {static_cast<unsigned>(ceil_div(r.value_dim, kColumns)), static_cast<unsigned>(r.n_heads),
       static_cast<unsigned>(a.recur.batch.n_sequences)},
      kThreads,
      bytes};
  allow_shared_memory(chunks_kernel<T, kKeys, kDelta>, bytes);
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
       static_cast<unsigned>(ceil_div(r.n_heads / r.n_key_heads, kFactorWarps))},
      kFactorWarps * kWarp};
  queue.launch("preparing chunks", chunk_factors_kernel<T, kKeys>, grid, a);
  if (a.is_hopper && go_on_sm90a(a, queue)) return;
  if (r.delta) {
    go_on<T, kKeys, true>(a, queue);
  } else {
    go_on<T, kKeys, false>(a, queue);
  }
}

// Whether a multiprocessor has the memory that the second kernel needs.
template <typename T, int kKeys = 64>
bool memory_fits(int keys) {
  if constexpr (kKeys < kMostKeys) {
    if (keys > kKeys) return memory_fits<T, 2 * kKeys>(keys);
  }
  return Block<T, kKeys>::stages_that_fit() > 0;
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
         r.key_dim % 16 == 0 && r.key_dim <= kMostKeys && r.value_dim % 16 == 0 &&
         (dtype == DType::bf16 ? memory_fits<__nv_bfloat16>(r.key_dim)
                               : memory_fits<__half>(r.key_dim));
}

ScratchPiece chunks_piece(int64_t chunks, int64_t heads) {
  if (chunks == 0 || heads == 0) return {};
  return piece_of(chunks, static_cast<size_t>(heads) * sizeof(ChunkFactors), 1);
}

void recur_chunks(const RecurArguments& arguments, std::byte* scratch, bool is_hopper,
                  const Queue& queue) {
  const int64_t slots = arguments.batch.n_tokens / kChunk;
  const ScratchPiece piece = chunks_piece(slots, arguments.recurrence.n_heads);
  for (int64_t first = 0; first < slots; first += piece.rows) {
    const ChunkArguments a{arguments, static_cast<int>(first),
                           static_cast<int>(std::min(slots, first + piece.rows)),
                           reinterpret_cast<ChunkFactors*>(scratch), is_hopper};
    if (arguments.q.dtype == DType::bf16) {
      launch<__nv_bfloat16>(a, queue);
    } else {
      launch<__half>(a, queue);
    }
  }
}

}  // namespace faststream
