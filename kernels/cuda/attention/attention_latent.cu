// Attention over keys that have their values in them (latent attention), in float arithmetic, any
// types and any even head_dim: the path of f32 models and odd widths; 16-bit models take
// attention_latent_mma.cu.
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
constexpr int kThreads = kHeads * kWarp;
constexpr int kMostElements = 1024 / kWarp;  // of a value, of a lane: of the widest key
static_assert(kPageTokens == kWarp, "a lane takes one token of a page");

template <typename T, typename Rule>
__global__ __launch_bounds__(kThreads) void attention_latent_kernel(AttentionArguments a,
                                                                    BatchView batch) {
  extern __shared__ float shared[];
  begin_kernel();
  const int64_t query = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int head = min(first_head + warp, a.n_heads - 1);  // more than there are: not stored
  const int dim = a.kv.head_dim;
  const int v_dim = a.kv.v_head_dim;
  float* q = shared;            // [kHeads, dim]
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
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * dim; i += kThreads) {
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

}  // namespace

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
      queue.launch("computing latent attention", kernel, {grid, kThreads, bytes}, a, batch);
    });
  });
}

}  // namespace faststream
