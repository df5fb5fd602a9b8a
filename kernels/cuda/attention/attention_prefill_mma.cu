// Attention of tiles of queries on the tensor cores: FlashAttention-2 (arXiv:2307.08691) over KV
// pages. A warp owns 16 queries, whose scores, probabilities and sums never leave its registers; a
// block shares a tile of keys and values in shared memory, the values being on their way while
// scores are computed, and the next keys while probabilities are multiplied. Of heads of more than
// 256 dimensions two warps have 16 queries: each multiplies half of the columns, and they add their
// scores through shared memory.
#include <cfloat>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarpRows = 16;
constexpr int kTile = 64;
constexpr int kTeams = kTile / kWarpRows;

/// kDim: the width of keys or values, the larger, rounded up; the columns past them are zeros.
template <typename T, int kDim>
struct Block {
  static constexpr int kParts = kDim > 256 ? 2 : 1;  // warps of a team, which have 16 queries
  static constexpr int kThreads = kTeams * kParts * kWarp;
  static constexpr int kTokens = kDim > 128 ? 32 : 64;  // of a tile of keys and values
  static constexpr int kScoreTiles = kTokens / 8;
  using Rows = T[kTokens][kDim + 8];  // of which rows fall into different banks
  struct Memory {
    alignas(16) Rows k;
    alignas(16) Rows v;
  };
  struct SharedMemory : Memory {
    float4 scores[kTeams][kParts][kScoreTiles][kWarp];
  };
  static constexpr size_t kBytes = kParts > 1 ? sizeof(SharedMemory) : sizeof(Memory);
};

template <typename T, int kDim, typename Rule>
__global__ __launch_bounds__(Block<T, kDim>::kThreads) void attention_mma_kernel(
    AttentionArguments a, RelativeScores relative) {
  using Block = Block<T, kDim>;
  constexpr int kParts = Block::kParts;
  constexpr int kTokens = Block::kTokens;
  constexpr int kScoreTiles = Block::kScoreTiles;
  constexpr int kPartDim = kDim / kParts;
  constexpr int kDimTiles = kPartDim / 8;
  extern __shared__ float4 shared_memory[];
  auto& memory = *reinterpret_cast<typename Block::SharedMemory*>(shared_memory);

  begin_kernel();
  const QueryTile tile = query_tile(a, kTile);
  if (tile.empty()) return;

  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarp / kParts;  // its team's
  const int part = static_cast<int>(threadIdx.x) / kWarp % kParts;
  const int first_column = part * kPartDim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int in_group = lane % 4;

  // Queries past the end repeat the last one and are not stored.
  const int rows[2] = {tile.first + warp * kWarpRows + group,
                       tile.first + warp * kWarpRows + group + 8};
  uint32_t q[kPartDim / 16][4];
#pragma unroll
  for (int step = 0; step < kPartDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = first_column + step * 16 + 2 * in_group + 8 * (i / 2);
      const int64_t row = tile.first_query + min(rows[i % 2], tile.n_queries - 1);
      const T* from = static_cast<const T*>(a.q.data) + row * a.q.stride +
                      static_cast<int64_t>(tile.head) * dim + d;
      q[step][i] = d < dim ? *reinterpret_cast<const uint32_t*>(from) : 0U;
    }
  }

  float sums[kDimTiles][4] = {};
  float maxima[2] = {-FLT_MAX, -FLT_MAX};
  float weights[2] = {};  // of this lane's columns; the four lanes of a row are added at the end
  const int32_t* pages = a.page_table + static_cast<int64_t>(tile.sequence) * a.max_pages;

  const Rule rule = rule_of<Rule>(a, relative, tile);
  const int first_seen = rule.first_seen(tile.first_position + tile.first);
  const auto copy = [&](const void* cache, int width, int base, typename Block::Rows& to) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kDim / 8; i += Block::kThreads) {
      const int token = i / (kDim / 8);
      const int d = i % (kDim / 8) * 8;
      // Tokens that are not seen: zeros, as whatever is in the page may be NaN.
      const bool wanted =
          base + token >= first_seen && base + token <= tile.last_token && d < width;
      const int64_t page = wanted ? pages[(base + token) / kPageTokens] : 0;
      const int64_t row =
          (page * a.kv.n_kv_heads + tile.kv_head) * kPageTokens + (base + token) % kPageTokens;
      copy_async(shared_address(&to[token][d]),
                 static_cast<const T*>(cache) + (wanted ? row * width + d : 0), wanted);
    }
    close_copies();
  };
  // From a multiple of kTokens on, so that a query's sums have the same order in any tile.
  const int first_base = first_seen / kTokens * kTokens;
  copy(a.kv.k, dim, first_base, memory.k);
  for (int base = first_base; base <= tile.last_token; base += kTokens) {
    wait_for_copies<0>();
    __syncthreads();  // keys are there, and nobody reads the values before
    copy(a.kv.v, v_dim, base, memory.v);

    float scores[kScoreTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kPartDim / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < kScoreTiles / 2; ++pair) {
        uint32_t b[4];
        load_matrices<false>(b, &memory.k[pair * 16 + lane % 8 + lane / 16 * 8]
                                         [first_column + step * 16 + lane / 8 % 2 * 8]);
        mma_16x8x16<T>(scores[2 * pair], q[step], b[0], b[1]);
        mma_16x8x16<T>(scores[2 * pair + 1], q[step], b[2], b[3]);
      }
    }

    if constexpr (kParts > 1) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        memory.scores[warp][part][n][lane] =
            make_float4(scores[n][0], scores[n][1], scores[n][2], scores[n][3]);
      }
    }
    __syncthreads();  // all have read the keys, and halves of scores are there
    if (base + kTokens <= tile.last_token) copy(a.kv.k, dim, base + kTokens, memory.k);
    if constexpr (kParts > 1) {
      static_assert(kParts == 2);
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        const float4 others = memory.scores[warp][part ^ 1][n][lane];
        scores[n][0] += others.x;
        scores[n][1] += others.y;
        scores[n][2] += others.z;
        scores[n][3] += others.w;
      }
    }

    float new_maxima[2] = {maxima[0], maxima[1]};
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = base + n * 8 + 2 * in_group + i % 2;
        const int position = tile.first_position + rows[i / 2];
        const float score = scores[n][i] * a.scale_log2;
        scores[n][i] = rule.sees(position, token) ? rule.vary(score, position, token) : -INFINITY;
        new_maxima[i / 2] = fmaxf(new_maxima[i / 2], scores[n][i]);
      }
    }
    float corrections[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = new_maxima[half];
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      corrections[half] = exp2f(maxima[half] - maximum);
      maxima[half] = maximum;
      weights[half] *= corrections[half];
    }
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= corrections[i / 2];
    }
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2f(scores[n][i] - maxima[i / 2]);
        weights[i / 2] += scores[n][i];
      }
    }

    if (base + kTokens <= tile.last_token) {
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();  // values are there
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const float(&left)[4] = scores[2 * step];
      const float(&right)[4] = scores[2 * step + 1];
      const uint32_t p[4] = {pack_pair<T>(left[0], left[1]), pack_pair<T>(left[2], left[3]),
                             pack_pair<T>(right[0], right[1]), pack_pair<T>(right[2], right[3])};
#pragma unroll
      for (int pair = 0; pair < kDimTiles / 2; ++pair) {
        uint32_t b[4];
        load_matrices<true>(b, &memory.v[step * 16 + lane % 8 + lane / 8 % 2 * 8]
                                        [first_column + pair * 16 + lane / 16 * 8]);
        mma_16x8x16<T>(sums[2 * pair], p, b[0], b[1]);
        mma_16x8x16<T>(sums[2 * pair + 1], p, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    weights[half] += __shfl_xor_sync(kAllLanes, weights[half], 1);
    weights[half] += __shfl_xor_sync(kAllLanes, weights[half], 2);
    if (rows[half] >= tile.n_queries) continue;
    const float factor = 1.0F / with_sink(a, tile.head, maxima[half], weights[half]);
    const int64_t row =
        (tile.first_query + rows[half]) * a.out.stride + static_cast<int64_t>(tile.head) * v_dim;
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
      const int d = first_column + n * 8 + 2 * in_group;
      if (d >= v_dim) continue;
      store_element(a.out.data, a.out.dtype, row + d, sums[n][2 * half] * factor);
      store_element(a.out.data, a.out.dtype, row + d + 1, sums[n][2 * half + 1] * factor);
    }
  }
}

}  // namespace

void attention_prefill_mma(const AttentionArguments& a, const BatchView& batch,
                           const Queue& queue) {
  const dim3 grid(ceil_div(batch.max_query_len, kTile), a.n_heads, batch.n_sequences);
  with_mma_shape(a, [&]<typename T, int kDim>() {
    with_rule_of_tiles(a, [&]<typename Rule>() {
      const auto kernel = attention_mma_kernel<T, kDim, Rule>;
      allow_shared_memory(kernel, Block<T, kDim>::kBytes);
      queue.launch("computing attention", kernel,
                   {grid, Block<T, kDim>::kThreads, Block<T, kDim>::kBytes}, a, relative_scores(a));
    });
  });
}

}  // namespace faststream
