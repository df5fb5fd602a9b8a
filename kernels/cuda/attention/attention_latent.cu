// Attention over keys that have their values in them (latent attention): the rotation of queries
// and of what is kept, and attention in float arithmetic, any types and any even head_dim: the path
// of f32 models and odd widths; 16-bit models take attention_latent_mma.cu.
//
// A block has a token's query and a head for each of its warps, which read a page of keys together
// from shared memory: for the scores each lane takes one token of the page, for the sums every 32nd
// element of the values.
#include <cfloat>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kHeads = 8;  // a warp each
constexpr int kLatentThreads = kHeads * kWarp;
constexpr int kMostElements = 1024 / kWarp;  // of a value, of a lane: of the widest key
static_assert(kPageTokens == kWarp, "a lane takes one token of a page");

template <typename T, typename Rule>
__global__ __launch_bounds__(kLatentThreads) void attention_latent_kernel(AttentionArguments a,
                                                                          BatchView batch) {
  extern __shared__ float shared_floats[];
  begin_kernel();
  const int64_t query = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int head = min(first_head + warp, a.n_heads - 1);  // more than there are: not stored
  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  float* q = shared_floats;     // [kHeads, dim]
  float* k = q + kHeads * dim;  // [kPageTokens, dim + 1]: lanes read a column
  for (int i = lane; i < dim; i += kWarp) {
    const int64_t index = query * a.q.stride + static_cast<int64_t>(head) * dim + i;
    q[warp * dim + i] = a.scale_log2 * load_element(a.q.data, a.q.dtype, index);
  }

  const int sequence = batch.sequence_of[query];
  const int position = batch.positions[query];
  const int n_tokens = a.kv_len[sequence];
  const int end = a.rule.bidirectional ? n_tokens : position + 1;
  const Rule rule(a, head, n_tokens);
  const int32_t* pages = a.page_table + static_cast<int64_t>(sequence) * a.max_pages;
  float maximum = -FLT_MAX;
  float weight = 0;
  float sums[kMostElements] = {};
  for (int base = rule.first_seen(position) / kPageTokens * kPageTokens; base < end;
       base += kPageTokens) {
    const T* page =
        static_cast<const T*>(a.kv.k) +
        static_cast<int64_t>(pages[base / kPageTokens]) * a.kv.n_kv_heads * kPageTokens * dim;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * dim; i += kLatentThreads) {
      // Whatever is in the place of tokens that are not there may be NaN.
      k[i + i / dim] = base + i / dim < end ? to_float(page[i]) : 0.0F;
    }
    __syncthreads();

    float score = 0;
    for (int d = 0; d < dim; ++d) score += q[warp * dim + d] * k[lane * (dim + 1) + d];
    const int token = base + lane;
    score =
        token < end && rule.sees(position, token) ? rule.vary(score, position, token) : -INFINITY;
    const float larger = fmaxf(maximum, warp_max(score));
    const float correction = exp2f(maximum - larger);
    maximum = larger;
    const float p = exp2f(score - maximum);
    weight = weight * correction + warp_sum(p);
#pragma unroll
    for (float& sum : sums) sum *= correction;
    for (int t = 0; t < kPageTokens; ++t) {
      const float of_token = __shfl_sync(kAllLanes, p, t);
      const float* value = k + t * (dim + 1) + dim - v_dim;
#pragma unroll
      for (int i = 0; i < kMostElements; ++i) {
        const int d = lane + i * kWarp;
        if (d >= v_dim) break;
        sums[i] += of_token * value[d];
      }
    }
  }
  if (first_head + warp >= a.n_heads) return;
  const float total = with_sink(a, head, maximum, weight);
#pragma unroll
  for (int i = 0; i < kMostElements; ++i) {
    const int d = lane + i * kWarp;
    if (d >= v_dim) break;
    store_element(a.out.data, a.out.dtype,
                  query * a.out.stride + static_cast<int64_t>(head) * v_dim + d, sums[i] / total);
  }
}

constexpr int kPlaceThreads = 256;

struct LatentPlaces {
  const int32_t* positions;
  const int32_t* sequence_of;
  const int32_t* page_table;
  int32_t max_pages;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int pairs;
  int64_t q_stride;
  int head_dim;
  int n_heads;
  int64_t kept_stride;
  KvLayer kv;
};

// A thread for each pair of heads of a token, or of the row that is kept, and each other element of
// that.
template <typename T>
__global__ __launch_bounds__(kPlaceThreads) void place_latents_kernel(LatentPlaces p, T* queries,
                                                                      const T* kept) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const int n = static_cast<int>(blockIdx.y) * kPlaceThreads + static_cast<int>(threadIdx.x);
  const auto rotate = [&](const T* from, int i, const auto& store) {
    const float* cos_sin = p.cos_sin + token * p.cos_sin_stride + 2 * i;
    const float first = to_float(from[i]);
    const float second = to_float(from[i + p.pairs]);
    const float cosine = cos_sin[0];
    const float sine = cos_sin[1];
    store(i, __fmaf_rn(first, cosine, -__fmul_rn(second, sine)));
    store(i + p.pairs, __fmaf_rn(second, cosine, __fmul_rn(first, sine)));
  };
  const int of_queries = p.n_heads * p.pairs;
  if (n < of_queries) {
    T* head = queries + token * p.q_stride + static_cast<int64_t>(n / p.pairs) * p.head_dim;
    rotate(head, n % p.pairs, [&](int i, float value) { head[i] = from_float<T>(value); });
    return;
  }
  const int i = n - of_queries;
  if (kept == nullptr || i >= p.kv.head_dim - p.pairs) return;
  const T* from = kept + token * p.kept_stride;
  const int32_t position = p.positions[token];
  const int64_t page = p.page_table[static_cast<int64_t>(p.sequence_of[token]) * p.max_pages +
                                    position / kPageTokens];
  const int64_t slot = (page * kPageTokens + position % kPageTokens) * p.kv.head_dim;
  const auto store = [&](int at, float value) {
    store_element(p.kv.k, p.kv.dtype, slot + at, value);
  };
  if (i < p.pairs) return rotate(from, i, store);
  store(i + p.pairs, to_float(from[i + p.pairs]));
}

}  // namespace

void place_latents(const BatchView& batch, const Matrix& queries, int64_t n_heads,
                   const Matrix& kept, const Matrix& cos_sin, const KvLayer& kv,
                   const Queue& queue) {
  if (batch.n_tokens == 0) return;
  const LatentPlaces places{.positions = batch.positions,
                            .sequence_of = batch.sequence_of,
                            .page_table = batch.page_table,
                            .max_pages = batch.max_pages,
                            .cos_sin = static_cast<const float*>(cos_sin.data),
                            .cos_sin_stride = cos_sin.stride,
                            .pairs = static_cast<int>(cos_sin.cols / 2),
                            .q_stride = queries.stride,
                            .head_dim = static_cast<int>(queries.cols / n_heads),
                            .n_heads = static_cast<int>(n_heads),
                            .kept_stride = kept.stride,
                            .kv = kv};
  const int threads =
      places.n_heads * places.pairs + (kept.data != nullptr ? kv.head_dim - places.pairs : 0);
  if (threads == 0) return;
  const dim3 grid(batch.n_tokens, ceil_div(threads, kPlaceThreads));
  with_float_type(queries.dtype, [&](auto zero) {
    using T = decltype(zero);
    queue.launch("rotating queries and latents", place_latents_kernel<T>, {grid, kPlaceThreads},
                 places, static_cast<T*>(queries.data), static_cast<const T*>(kept.data));
  });
}

void attention_latent_float(const AttentionArguments& a, const BatchView& batch,
                            const Queue& queue) {
  const size_t bytes =
      static_cast<size_t>(kHeads * a.kv.head_dim + kPageTokens * (a.kv.head_dim + 1)) *
      sizeof(float);
  const dim3 grid(batch.n_tokens, ceil_div(a.n_heads, kHeads));
  with_float_type(a.kv.dtype, [&](auto zero) {
    with_rule(a, [&]<typename Rule>() {
      const auto kernel = attention_latent_kernel<decltype(zero), Rule>;
      allow_shared_memory(kernel, bytes);
      queue.launch("computing latent attention", kernel, {grid, kLatentThreads, bytes}, a, batch);
    });
  });
}

}  // namespace faststream
