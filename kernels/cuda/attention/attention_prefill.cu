// Attention of tiles of queries in float arithmetic, any types and any even widths: online
// softmax (arXiv:2205.14135), one KV page at a time in shared memory. The path of f32 models and of
// odd and wide heads; other 16-bit models take attention_prefill_mma.cu.
//
// A warp owns four queries, or two of wide heads, which have room then on any GPU. For the scores,
// each lane takes one token of the page; for the sums, each lane takes every 32nd dimension and the
// probabilities travel by shuffles.
#include <cfloat>

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kPrefillWarps = 8;
constexpr int kPrefillThreads = kPrefillWarps * kWarp;
static_assert(kPageTokens == kWarp, "a lane takes one token of a page");

// kRows: queries of a warp. kDims: dimensions of a lane at most.
template <typename T, int kRows, int kDims, typename Rule>
__global__ __launch_bounds__(kPrefillThreads) void attention_prefill_kernel(
    AttentionArguments a, RelativeScores relative) {
  constexpr int kTile = kPrefillWarps * kRows;
  extern __shared__ float shared_floats[];
  begin_kernel();
  const QueryTile tile = query_tile(a, kTile);
  if (tile.empty()) return;

  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  float* q = shared_floats;                // [kTile, dim]
  float* k = q + kTile * dim;              // [kPageTokens, dim + 1]: lanes read a column
  float* v = k + kPageTokens * (dim + 1);  // [kPageTokens, v_dim]
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kPrefillThreads) {
    const int row = min(tile.first + i / dim, tile.n_queries - 1);
    q[i] = a.scale_log2 * load_element(a.q.data, a.q.dtype,
                                       (tile.first_query + row) * a.q.stride +
                                           static_cast<int64_t>(tile.head) * dim + i % dim);
  }

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* my_q = q + warp * kRows * dim;
  float maxima[kRows];
  float weights[kRows] = {};
  float sums[kRows][kDims] = {};
  for (float& maximum : maxima) maximum = -FLT_MAX;

  const Rule rule = rule_of<Rule>(a, relative, tile);
  const int first_seen = rule.first_seen(tile.first_position + tile.first);
  const int32_t* pages = a.page_table + static_cast<int64_t>(tile.sequence) * a.max_pages;
  for (int base = first_seen / kPageTokens * kPageTokens; base <= tile.last_token;
       base += kPageTokens) {
    const int64_t first_row =
        (static_cast<int64_t>(pages[base / kPageTokens]) * a.kv.n_kv_heads + tile.kv_head) *
        kPageTokens;
    // Tokens that are not seen: zeros, as whatever is in the page may be NaN.
    const auto load = [&](const void* rows, int width, int i) {
      const int token = base + i / width;
      const bool is_seen = token >= first_seen && token <= tile.last_token;
      return is_seen ? to_float(static_cast<const T*>(rows)[first_row * width + i]) : 0.0F;
    };
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * dim; i += kPrefillThreads) {
      k[i + i / dim] = load(a.kv.k, dim, i);
    }
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * v_dim; i += kPrefillThreads) {
      v[i] = load(a.kv.v, v_dim, i);
    }
    __syncthreads();

    float scores[kRows] = {};
    for (int d = 0; d < dim; ++d) {
      const float key = k[lane * (dim + 1) + d];
#pragma unroll
      for (int row = 0; row < kRows; ++row) scores[row] += my_q[row * dim + d] * key;
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int position = tile.first_position + tile.first + warp * kRows + row;
      const int token = base + lane;
      const float score =
          rule.sees(position, token) ? rule.vary(scores[row], position, token) : -INFINITY;
      const float maximum = fmaxf(maxima[row], warp_max(score));
      const float correction = exp2f(maxima[row] - maximum);
      maxima[row] = maximum;
      scores[row] = exp2f(score - maximum);
      weights[row] = weights[row] * correction + warp_sum(scores[row]);
#pragma unroll
      for (float& sum : sums[row]) sum *= correction;
    }
    for (int token = 0; token < kPageTokens; ++token) {
      float p[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) p[row] = __shfl_sync(kAllLanes, scores[row], token);
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = lane + i * kWarp;
        if (d >= v_dim) break;
        const float value = v[token * v_dim + d];
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row][i] += p[row] * value;
      }
    }
  }

#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int query = tile.first + warp * kRows + row;
    if (query >= tile.n_queries) continue;
    const float weight = with_sink(a, tile.head, maxima[row], weights[row]);
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int d = lane + i * kWarp;
      if (d >= v_dim) break;
      store_element(
          a.out.data, a.out.dtype,
          (tile.first_query + query) * a.out.stride + static_cast<int64_t>(tile.head) * v_dim + d,
          sums[row][i] / weight);
    }
  }
}

template <int kRows, int kDims>
void launch(const AttentionArguments& a, const BatchView& batch, const Queue& queue) {
  constexpr int kTile = kPrefillWarps * kRows;
  const size_t bytes = static_cast<size_t>(kTile * a.kv.head_dim +
                                           kPageTokens * (a.kv.head_dim + 1 + a.kv.v_head_dim)) *
                       sizeof(float);
  const dim3 grid(ceil_div(batch.max_query_len, kTile), a.n_heads, batch.n_sequences);
  with_float_type(a.kv.dtype, [&](auto zero) {
    with_rule_of_tiles(a, [&]<typename Rule>() {
      const auto kernel = attention_prefill_kernel<decltype(zero), kRows, kDims, Rule>;
      allow_shared_memory(kernel, bytes);
      queue.launch("computing attention", kernel, {grid, kPrefillThreads, bytes}, a,
                   relative_scores(a));
    });
  });
}

}  // namespace

void attention_prefill(const AttentionArguments& a, const BatchView& batch, const Queue& queue) {
  if (a.widest_head() <= 256) {
    launch<4, 256 / kWarp>(a, batch, queue);
  } else {
    launch<2, kLargestHeadDim / kWarp>(a, batch, queue);
  }
}

}  // namespace faststream
