// The second kernel of chunks (recur_chunks.cu) on Hopper, of bfloat16: a warpgroup's instructions
// read keys and queries from shared memory once for its four warps, where each warp by itself loads
// them all into registers, which takes as long as the products.
//
// A block has 32 values of a head: 64 rows, upper parts and what is left of them, in accumulators
// and left factors as recur_chunks.cu has them in a warp's 16. K S and Q S of a chunk are one
// product, whose right factor is the keys and the queries below them. While S is gone on with, the
// same warps make the outputs. So a chunk of the delta rule with 128 keys takes 1,570 cycles in the
// place of 2,300, and 8,192 tokens of 32 heads 0.27 ms, both kernels together.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/recurrent/recur_chunks.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kStages = 4;
constexpr int kThreads = kWarpgroup + kWarp;  // the last warp copies
constexpr int kRows = 2 * kChunk;             // keys, and queries
constexpr int kValueBytes = kColumns * 2;     // of a row
static_assert(kStateWarps * kWarp == kWarpgroup && kRows == 64);

struct Maps {
  CUtensorMap keys;
  CUtensorMap queries;
  CUtensorMap values;
};

template <int kKeys>
struct Shared {
  static constexpr int kBlocks = kKeys / kBlockColumns;
  struct alignas(kBlockAlignment) Stage {
    std::byte rows[kBlocks][kRows * kBlockRowBytes];  // of keys, then of queries
    std::byte values[kChunk * kValueBytes];
    ChunkFactors factors;
  };
  Stage stages[kStages];
  uint64_t there[kStages];
  uint64_t used[kStages];
};

// Copies what each chunk needs, as soon as there is room. By a thread.
template <int kKeys, bool kDelta>
__device__ void copy_chunks(const Maps& maps, const ChunkArguments& a, const ChunkWork& work,
                            Shared<kKeys>& shared) {
  constexpr size_t kSkipped = kDelta ? 0 : sizeof(ChunkFactors::writes);
  constexpr auto kFactorBytes = static_cast<uint32_t>(sizeof(ChunkFactors) - kSkipped);
  const Recurrence& r = a.recur.recurrence;
  const auto key = static_cast<int>(work.first_key(r));
  const auto value = static_cast<int>(work.first_value(r));
  StagePlace place;
  for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
    auto& stage = shared.stages[place.stage];
    uint64_t& there = shared.there[place.stage];
    const auto row = static_cast<int>(work.row_of(chunk));
    wait_for_phase(shared.used[place.stage], place.parity ^ 1);
    arrive_and_expect(there, sizeof stage.rows + sizeof stage.values + kFactorBytes);
#pragma unroll
    for (int block = 0; block < Shared<kKeys>::kBlocks; ++block) {
      const int column = key + block * kBlockColumns;
      copy_box(stage.rows[block], maps.keys, column, row, there);
      copy_box(stage.rows[block] + kChunk * kBlockRowBytes, maps.queries, column, row, there);
    }
    copy_box(stage.values, maps.values, value, row, there);
    copy_bulk(shared_address(&stage.factors) + kSkipped,
              reinterpret_cast<const std::byte*>(&a.factors_of(row, work.head)) + kSkipped,
              kFactorBytes, there);
    place.advance(kStages);
  }
}

// V of a warp's values, transposed: a box of rows of 64 bytes.
__device__ void load_values(const std::byte* values, int warp, Pair (&to)[kTokenTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t narrow[kTokenTiles];
  load_matrices<true>(narrow, values + lane * kValueBytes + (warp ^ lane / 2 % 4) * 16);
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const float2 two = widen_pair<__nv_bfloat16>(narrow[n]);
    to[n][0] = two.x;
    to[n][1] = two.y;
  }
}

// A warpgroup's states. Of each sum a thread has the product of the upper part of its value, and
// two further that of the rest.
template <int kKeys>
class States {
 public:
  using LeftFactors = LeftFactor<__nv_bfloat16>;

  template <typename F>
  __device__ void for_each(const F& load_or_store) {
    load_or_store([&](int tile, int i) -> float& { return sums_[4 * tile + i]; });
  }

  // Begins K S and Q S.
  __device__ void begin_finding(const typename Shared<kKeys>::Stage& stage) {
#pragma unroll
    for (float& sum : found_) sum = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float* s = &sums_[8 * step];
      left_factor({s[0], s[1]}, {s[4], s[5]}, left_[step]);
    }
    pin(found_);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      constexpr int kStepBytes = 32;
      constexpr int kBlockSteps = kBlockRowBytes / kStepBytes;
      const std::byte* rows = stage.rows[step / kBlockSteps] + step % kBlockSteps * kStepBytes;
      multiply_rows<kRows>(found_, left_[step].a, matrix_descriptor(rows, 16));
    }
    end_group();
  }
  __device__ void end_finding() {
    wait_for_groups<0>();
    pin(found_);
  }
  [[nodiscard]] __device__ float known(int n, int i) const { return found(n, i); }
  [[nodiscard]] __device__ float seen(int n, int i) const { return found(kTokenTiles + n, i); }

  // Begins what makes S kept S + Kᵀ W.
  __device__ void begin_writing(float kept, const Pair (&written)[kTokenTiles],
                                const typename Shared<kKeys>::Stage& stage) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      left_factor(written[n], written[n + 1], written_[n / 2]);
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; i += 4) {
      sums_[i] *= kept;
      sums_[i + 1] *= kept;
      sums_[i + 2] = sums_[i + 3] = 0;
    }
    pin(sums_);
    begin_products();
#pragma unroll
    for (int step = 0; step < kTokenTiles / 2; ++step) {
      multiply_add_rows<__nv_bfloat16>(
          sums_, written_[step].a,
          matrix_descriptor(stage.rows[0] + step * 16 * kBlockRowBytes, sizeof stage.rows[0]));
    }
    end_group();
  }
  __device__ void end_writing() {
    wait_for_groups<0>();
    pin(sums_);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; i += 4) {
      sums_[i] += sums_[i + 2];
      sums_[i + 1] += sums_[i + 3];
    }
  }

 private:
  static constexpr int kTiles = kKeys / kTileEdge;
  static constexpr int kSteps = kKeys / 16;

  [[nodiscard]] __device__ float found(int n, int i) const {
    return found_[4 * n + i] + found_[4 * n + i + 2];
  }

  float sums_[4 * kTiles] = {};
  LeftFactors left_[kSteps];
  float found_[2 * 4 * kTokenTiles];
  LeftFactors written_[kTokenTiles / 2];
};

// Goes from chunk to chunk, by a warpgroup.
template <int kKeys, bool kDelta>
__device__ void go_over_chunks(const ChunkArguments& a, const ChunkWork& work,
                               Shared<kKeys>& shared) {
  using T = __nv_bfloat16;
  const Recurrence& r = a.recur.recurrence;
  const BatchView& batch = a.recur.batch;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_column = warp * kWarpColumns;
  const bool has_columns = work.column + warp_column < r.value_dim;
  const float skip = r.skips != nullptr ? r.skips[work.head] : 0.0F;
  const int64_t tile_rows = kTileEdge * a.recur.out.stride;
  T* out = static_cast<T*>(a.recur.out.data) +
           (work.row_of(work.first_chunk) + lane / 4) * a.recur.out.stride + work.first_value(r) +
           warp_column + lane % 4 * 2;

  States<kKeys> states;
  const auto store = [&](int32_t n) {
    states.for_each([&](const auto& element) {
      work.for_each_element<kKeys>(a, n, warp,
                                   [&](int tile, int i, float& to) { to = element(tile, i); });
    });
  };
  const bool begins_piece = work.pages.begin + work.first_chunk == 0;
  states.for_each([&](const auto& element) {
    work.for_each_element<kKeys>(
        a, begins_piece ? batch.state_from[work.sequence] : batch.state_to[work.sequence], warp,
        [&](int tile, int i, float from) { element(tile, i) = from; });
  });
  const int border_chunk = work.border_chunk(batch);

  StagePlace place;
  for (int chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
    const auto& stage = shared.stages[place.stage];
    const ChunkFactors& factors = stage.factors;
    wait_for_phase(shared.there[place.stage], place.parity);
    states.begin_finding(stage);
    Pair written[kTokenTiles];  // V, then V - e^G K S, then W
    Pair results[kTokenTiles];  // Y
    load_values(stage.values, warp, written);
    const TokenFactors of_known(factors.known);
    const TokenFactors of_seen(factors.seen);
    const TokenFactors of_written(factors.written);
    states.end_finding();
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        results[n][i] = fmaf(of_seen(n, i), states.seen(n, i), skip * written[n][i]);
        if constexpr (kDelta) {
          written[n][i] = fmaf(-of_known(n, i), states.known(n, i), written[n][i]);
        }
      }
    }
    if constexpr (kDelta) Triangle(factors.writes).multiply_by(written, written);
    Pair scaled[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scaled[n][i] = written[n][i] * of_written(n, i);
    }
    states.begin_writing(factors.kept[0], scaled, stage);
    Pair scored[kTokenTiles];
    Triangle(factors.scores).multiply_by(written, scored);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) results[n][i] += scored[n][i];
    }
    store_results(results, out, tile_rows, has_columns);
    out += kTokenTiles * tile_rows;
    states.end_writing();
    arrive_as_warp(shared.used[place.stage]);
    place.advance(kStages);
    if (chunk == border_chunk) store(batch.state_border[work.sequence]);
  }
  store(batch.state_to[work.sequence]);
}

template <int kKeys, bool kDelta>
__global__ void __launch_bounds__(kThreads)
    chunks_sm90a_kernel(const __grid_constant__ Maps maps,
                        const __grid_constant__ ChunkArguments a) {
  extern __shared__ std::byte memory[];
  begin_kernel();
  const ChunkWork work(a);
  if (work.first_chunk == work.last_chunk) return;
  auto& shared = aligned<Shared<kKeys>>(memory);
  if (threadIdx.x == 0) {
    for (uint64_t& there : shared.there) init_barrier(there, 1);
    for (uint64_t& used : shared.used) init_barrier(used, kStateWarps);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    go_over_chunks<kKeys, kDelta>(a, work, shared);
  } else if (threadIdx.x == kWarpgroup) {
    copy_chunks<kKeys, kDelta>(maps, a, work, shared);
  }
}

template <int kKeys, bool kDelta>
void launch(const ChunkArguments& a, const Queue& queue) {
  constexpr size_t kBytes = sizeof(Shared<kKeys>) + kBlockAlignment;
  const auto boxes_of = [](const Matrix& m, int32_t box_bytes) {
    return describe({m.data, m.dtype, m.rows, m.cols, m.stride, kChunk, box_bytes});
  };
  const Maps maps{boxes_of(a.recur.k, kBlockRowBytes), boxes_of(a.recur.q, kBlockRowBytes),
                  boxes_of(a.recur.v, kValueBytes)};
  const Recurrence& r = a.recur.recurrence;
  const Grid grid{
      {static_cast<unsigned>(ceil_div(r.value_dim, kColumns)), static_cast<unsigned>(r.n_heads),
       static_cast<unsigned>(a.recur.batch.n_sequences)},
      kThreads,
      kBytes};
  const auto kernel = chunks_sm90a_kernel<kKeys, kDelta>;
  allow_shared_memory(kernel, kBytes);
  queue.launch("going on with states", kernel, grid, maps, a);
}

}  // namespace

bool go_on_sm90a(const ChunkArguments& arguments, const Queue& queue) {
  const Recurrence& r = arguments.recur.recurrence;
  if (arguments.recur.q.dtype != DType::bf16) return false;
  switch (r.key_dim) {
    case 64:
      r.delta ? launch<64, true>(arguments, queue) : launch<64, false>(arguments, queue);
      return true;
    case 128:
      r.delta ? launch<128, true>(arguments, queue) : launch<128, false>(arguments, queue);
      return true;
    default:
      return false;
  }
}

}  // namespace faststream
