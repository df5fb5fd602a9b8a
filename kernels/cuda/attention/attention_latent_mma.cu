// Attention over keys that have their values in them (latent attention), on the tensor cores.
//
// A block has up to 16 kTiles rows, heads of a token or of several tokens in a row, and reads each
// page of keys once for all of them, the next one while it computes. kSplit warps share a tile of
// 16 rows: each multiplies the queries with its part of the page's tokens, all take the scores from
// shared memory, and each sums its part of the values' columns, every kSplit-th 16.
//
// Bytes: a page of 32 tokens of 576 elements is 36 KB, for which an H100 has 1.5 us for each of its
// multiprocessors; of 16 heads a warp's 36 + 32 products take a fraction of it.
#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kTileRows = 16;
constexpr int kMostColumns = 512;  // of values
constexpr int kStages = 2;
constexpr int kPad = 8;  // elements behind a row: of 8 rows no two share banks
constexpr int kScoreStride = kPageTokens + 1;
constexpr int kCopied = 8;  // elements of 16 bytes

/// What a block works on.
struct Rows {
  int sequence = 0;
  int64_t first_query = 0;  // row of the batch
  int first_position = 0;
  int n_tokens = 0;
  int first_head = 0;
  int n_heads = 0;  // row r is token r / n_heads, head r % n_heads
  int first = 0;    // cached tokens [first, last)
  int last = 0;

  [[nodiscard]] __device__ int count() const { return n_tokens * n_heads; }
  [[nodiscard]] __device__ int64_t query(int row) const { return first_query + row / n_heads; }
  [[nodiscard]] __device__ int head(int row) const { return first_head + row % n_heads; }
};

size_t shared_bytes(int rows, int head_dim) {
  const int stride = head_dim + kPad;
  return static_cast<size_t>((rows + kStages * kPageTokens) * stride) * sizeof(uint16_t) +
         static_cast<size_t>(rows * kScoreStride) * sizeof(float);
}

/// Calls store(row, column, elements column and column + 1, the row's maximum and weight) for all
/// rows and columns of sums of values that are not divided by the weight yet.
template <typename T, int kTiles, int kSplit, typename Store>
__device__ void attend(const AttentionArguments& a, const Rows& rows, const Store& store) {
  constexpr int kThreads = kTiles * kSplit * kWarp;
  constexpr int kRows = kTiles * kTileRows;
  constexpr int kPairs = kMostColumns / 16 / kSplit;     // of 8 columns, of a warp
  constexpr int kTokenTiles = kPageTokens / 8 / kSplit;  // of 8 tokens, of a warp
  static_assert(kTokenTiles > 0);
  extern __shared__ __align__(16) std::byte shared[];
  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  const int stride = dim + kPad;
  T* q = reinterpret_cast<T*>(shared);  // [kRows, stride]
  T* keys = q + kRows * stride;         // [kStages, kPageTokens, stride]
  auto* scores = reinterpret_cast<float*>(keys + kStages * kPageTokens * stride);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int tile = warp / kSplit;
  const int part = warp % kSplit;
  const int g = lane / 4;  // rows g and g + 8 of the tile
  const int t = lane % 4;

  const int pieces = dim / kCopied;  // of a row
  const int n_rows = rows.count();
  const auto shared_address = [](const T* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
  };
  for (int i = static_cast<int>(threadIdx.x); i < kRows * pieces; i += kThreads) {
    const int row = i / pieces;
    const int column = i % pieces * kCopied;
    const int wanted = min(row, n_rows - 1);
    const T* from = static_cast<const T*>(a.q.data) + rows.query(wanted) * a.q.stride +
                    static_cast<int64_t>(rows.head(wanted)) * dim + column;
    copy_async(shared_address(q + row * stride + column), from, row < n_rows);
  }
  const int32_t* pages = a.page_table + static_cast<int64_t>(rows.sequence) * a.max_pages;
  const auto fetch = [&](int base, int stage) {
    if (base < rows.last) {
      const T* page = static_cast<const T*>(a.kv.k) +
                      static_cast<int64_t>(pages[base / kPageTokens]) * kPageTokens * dim;
      T* to = keys + stage * kPageTokens * stride;
      for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * pieces; i += kThreads) {
        const int token = i / pieces;
        const int column = i % pieces * kCopied;
        // Zeros in the place of tokens that are not there: whatever is in the page may be NaN.
        copy_async(shared_address(to + token * stride + column), page + token * dim + column,
                   base + token < rows.last);
      }
    }
    close_copies();
  };

  float maxima[2] = {kLowest, kLowest};
  float weights[2] = {};
  float sums[kPairs][2][4] = {};
  int positions[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min(tile * kTileRows + g + 8 * i, n_rows - 1);
    positions[i] = rows.first_position + row / rows.n_heads;
  }
  const T* my_q = q + (tile * kTileRows + lane % 16) * stride + lane / 16 * 8;
  float* my_scores = scores + tile * kTileRows * kScoreStride;

  fetch(rows.first, 0);
  int stage = 0;
  for (int base = rows.first; base < rows.last; base += kPageTokens) {
    fetch(base + kPageTokens, stage ^ 1);
    wait_for_copies<1>();
    __syncthreads();
    const T* page = keys + stage * kPageTokens * stride;

    float found[kTokenTiles][4] = {};
    const T* my_keys = page + (part * kTokenTiles * 8 + lane % 8) * stride + lane / 8 * 8;
    for (int d = 0; d < dim; d += 32) {
      uint32_t first[4];
      uint32_t second[4];
      load_matrices<false>(first, my_q + d);
      load_matrices<false>(second, my_q + d + 16);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        uint32_t key[4];
        load_matrices<false>(key, my_keys + n * 8 * stride + d);
        mma_16x8x16<T>(found[n], first, key[0], key[1]);
        mma_16x8x16<T>(found[n], second, key[2], key[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int column = (part * kTokenTiles + n) * 8 + 2 * t;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        my_scores[(g + i / 2 * 8) * kScoreStride + column + i % 2] = found[n][i];
      }
    }
    __syncthreads();

    // Of tokens 2t, 2t + 1 of each 8, as fragments of the next product want them.
    uint32_t chosen[2][4];  // of 16 tokens each
    float corrections[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float p[8];
      float maximum = maxima[i];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int column = n / 2 * 8 + 2 * t + n % 2;
        const float score = my_scores[(g + 8 * i) * kScoreStride + column] * a.scale_log2;
        p[n] = base + column <= positions[i] && base + column < rows.last ? score : -INFINITY;
        maximum = fmaxf(maximum, p[n]);
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      corrections[i] = exp2f(maxima[i] - maximum);
      maxima[i] = maximum;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        p[n] = exp2f(p[n] - maximum);
        sum += p[n];
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      weights[i] = __fmaf_rn(weights[i], corrections[i], sum);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        chosen[n / 2][n % 2 * 2 + i] = pack_pair<T>(p[2 * n], p[2 * n + 1]);
      }
    }
    const T* my_values = page + (lane % 16) * stride + dim - v_dim + lane / 16 * 8;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int column = (pair * kSplit + part) * 16;
      if (column >= v_dim) break;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[pair][n][i] *= corrections[i / 2];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t value[4];
        load_matrices<true>(value, my_values + half * 16 * stride + column);
        mma_16x8x16<T>(sums[pair][0], chosen[half], value[0], value[1]);
        mma_16x8x16<T>(sums[pair][1], chosen[half], value[2], value[3]);
      }
    }
    stage ^= 1;
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile * kTileRows + g + 8 * i;
    if (row >= n_rows) continue;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int column = (pair * kSplit + part) * 16 + 2 * t;
      if (column >= v_dim) break;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        store(row, column + 8 * n, sums[pair][n][2 * i], sums[pair][n][2 * i + 1], maxima[i],
              weights[i]);
      }
    }
  }
}

template <typename T>
__device__ void store_output(const AttentionArguments& a, const Rows& rows, int row, int column,
                             float first, float second, float maximum, float weight) {
  const int head = rows.head(row);
  const float total = with_sink(a, head, maximum, weight);
  const int64_t index =
      rows.query(row) * a.out.stride + static_cast<int64_t>(head) * a.kv.v_head_dim + column;
  store_element(a.out.data, a.out.dtype, index, first / total);
  store_element(a.out.data, a.out.dtype, index + 1, second / total);
}

template <typename T, int kTiles, int kSplit>
__global__ __launch_bounds__(kTiles* kSplit* kWarp) void latent_decode_kernel(AttentionArguments a,
                                                                              Splits splits) {
  begin_kernel();
  const Split split = split_of_block(a, splits, kTiles * kTileRows);
  if (split.empty()) return;
  const Rows rows{.sequence = split.sequence,
                  .first_query = split.query,
                  .first_position = split.position,
                  .n_tokens = 1,
                  .first_head = split.first_head,
                  .n_heads = split.n_heads,
                  .first = split.first,
                  .last = split.last};
  const bool alone = split.alone || splits.count == 1;
  attend<T, kTiles, kSplit>(
      a, rows, [&](int row, int column, float first, float second, float maximum, float weight) {
        if (alone) {
          store_output<T>(a, rows, row, column, first, second, maximum, weight);
          return;
        }
        float* partial =
            splits.partials + partial_index(a, splits, split.sequence, rows.head(row), split.part);
        if (column == 0) *reinterpret_cast<float2*>(partial) = make_float2(maximum, weight);
        *reinterpret_cast<float2*>(partial + 2 + column) = make_float2(first, second);
      });
}

template <typename T, int kTiles, int kSplit>
__global__ __launch_bounds__(kTiles* kSplit* kWarp) void latent_prefill_kernel(AttentionArguments a,
                                                                               int tile_tokens,
                                                                               int tile_heads) {
  begin_kernel();
  const auto sequence = static_cast<int>(blockIdx.z);
  const int64_t first_query = a.query_start[sequence];
  const int n_queries = static_cast<int>(a.query_start[sequence + 1] - first_query);
  // Late tiles see the most tokens: they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * tile_tokens;
  if (n_queries < 2 || n_queries > a.most_queries || first >= n_queries) return;
  Rows rows;
  rows.sequence = sequence;
  rows.first_query = first_query + first;
  rows.first_position = a.kv_len[sequence] - n_queries + first;
  rows.n_tokens = min(tile_tokens, n_queries - first);
  rows.first_head = static_cast<int>(blockIdx.y) * tile_heads;
  rows.n_heads = min(tile_heads, a.n_heads - rows.first_head);
  rows.last = rows.first_position + rows.n_tokens;
  attend<T, kTiles, kSplit>(
      a, rows, [&](int row, int column, float first, float second, float maximum, float weight) {
        store_output<T>(a, rows, row, column, first, second, maximum, weight);
      });
}

template <typename F>
void with_16_bit_type(DType type, const F& f) {
  if (type == DType::f16) {
    f(__half{});
  } else {
    f(__nv_bfloat16{});
  }
}

// Blocks of few rows and of many.
constexpr int kFewTiles = 1;
constexpr int kFewSplit = 4;
constexpr int kManyTiles = 4;
constexpr int kManySplit = 2;

}  // namespace

bool latent_widths_fit(const AttentionArguments& a) {
  constexpr size_t kMostBytes = size_t{160} << 10;  // of shared memory
  return a.kv.n_kv_heads == 1 && a.kv.head_dim % 32 == 0 && a.kv.v_head_dim % 16 == 0 &&
         a.kv.v_head_dim <= kMostColumns && is_plain(a.rule) && !a.rule.bidirectional &&
         shared_bytes(kManyTiles * kTileRows, a.kv.head_dim) <= kMostBytes;
}

void attention_latent_decode_mma(const AttentionArguments& a, int32_t n_sequences,
                                 const Splits& splits, const Queue& queue) {
  with_16_bit_type(a.kv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&]<int kTiles, int kSplit>() {
      const auto kernel = latent_decode_kernel<T, kTiles, kSplit>;
      constexpr int kRows = kTiles * kTileRows;
      Splits of_tiles = splits;
      of_tiles.head_tiles = ceil_div(a.n_heads, kRows);
      Grid grid = split_grid(a, of_tiles, n_sequences, kTiles * kSplit * kWarp);
      grid.shared_bytes = shared_bytes(kRows, a.kv.head_dim);
      allow_shared_memory(kernel, grid.shared_bytes);
      queue.launch("computing latent attention", kernel, grid, a, of_tiles);
    };
    if (a.n_heads <= kFewTiles * kTileRows) {
      launch.template operator()<kFewTiles, kFewSplit>();
    } else {
      launch.template operator()<kManyTiles, kManySplit>();
    }
  });
}

void attention_latent_prefill_mma(const AttentionArguments& a, const BatchView& batch,
                                  const Queue& queue) {
  constexpr int kRows = kManyTiles * kTileRows;
  const int heads = std::min(a.n_heads, kRows);
  const int tokens = kRows / heads;
  with_16_bit_type(a.kv.dtype, [&](auto zero) {
    const auto kernel = latent_prefill_kernel<decltype(zero), kManyTiles, kManySplit>;
    const size_t bytes = shared_bytes(kRows, a.kv.head_dim);
    allow_shared_memory(kernel, bytes);
    const dim3 grid(ceil_div(batch.max_query_len, tokens), ceil_div(a.n_heads, heads),
                    batch.n_sequences);
    queue.launch("computing latent attention", kernel,
                 {grid, kManyTiles * kManySplit * kWarp, bytes}, a, tokens, heads);
  });
}

}  // namespace faststream
