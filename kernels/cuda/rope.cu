// Rotary position embedding, and the append of keys and values to their pages.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kHeadsPerBlock = 8;

// The accurate sine and cosine: angles reach the context's length, where the fast ones have no
// digits left.
__global__ void rope_table_kernel(const int32_t* positions, const float* inv_freq, int n_pairs,
                                  float* cos_sin, int64_t stride) {
  begin_kernel();
  const float position = static_cast<float>(positions[blockIdx.x]);
  float* row = cos_sin + blockIdx.x * stride;
  for (int i = static_cast<int>(threadIdx.x); i < n_pairs; i += static_cast<int>(blockDim.x)) {
    float sine = 0;
    float cosine = 0;
    sincosf(__fmul_rn(position, inv_freq[i]), &sine, &cosine);
    row[2 * i] = cosine;
    row[2 * i + 1] = sine;
  }
}

struct RopeArguments {
  const int32_t* positions;
  const int32_t* sequence_of;
  const int32_t* page_table;
  int32_t max_pages;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int64_t qkv_stride;
  int n_heads;
  KvLayer kv;
};

// A warp for each (token, head): queries first, then keys, then values.
template <typename T>
__global__ void rope_append_kernel(RopeArguments a, T* qkv) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y * kHeadsPerBlock + threadIdx.y);
  if (head >= a.n_heads + 2 * a.kv.n_kv_heads) return;
  const int dim = a.kv.head_dim;
  const int half = dim / 2;
  const int lane = static_cast<int>(threadIdx.x);
  T* from = qkv + token * a.qkv_stride + static_cast<int64_t>(head) * dim;
  const float* cos_sin = a.cos_sin + token * a.cos_sin_stride;

  const bool is_query = head < a.n_heads;
  const bool is_key = !is_query && head < a.n_heads + a.kv.n_kv_heads;
  void* cache = is_key ? a.kv.k : a.kv.v;
  int64_t slot = 0;
  if (!is_query) {
    const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
    const int32_t position = a.positions[token];
    const int64_t page = a.page_table[static_cast<int64_t>(a.sequence_of[token]) * a.max_pages +
                                      position / kPageTokens];
    slot = ((page * a.kv.n_kv_heads + kv_head) * kPageTokens + position % kPageTokens) * dim;
  }

  for (int i = lane; i < half; i += kWarp) {
    float first = to_float(from[i]);
    float second = to_float(from[i + half]);
    if (is_query || is_key) {
      const float cosine = cos_sin[2 * i];
      const float sine = cos_sin[2 * i + 1];
      const float rotated = first * cosine - second * sine;
      second = second * cosine + first * sine;
      first = rotated;
    }
    if (is_query) {
      from[i] = from_float<T>(first);
      from[i + half] = from_float<T>(second);
    } else {
      store_element(cache, a.kv.dtype, slot + i, first);
      store_element(cache, a.kv.dtype, slot + i + half, second);
    }
  }
}

}  // namespace

void CudaBackend::rope_table(const BatchView& batch, const float* inv_freq, const Matrix& cos_sin) {
  if (batch.n_tokens == 0) return;
  queue().launch("computing rotations", rope_table_kernel, {batch.n_tokens, 64}, batch.positions,
                 inv_freq, static_cast<int>(cos_sin.cols / 2), static_cast<float*>(cos_sin.data),
                 cos_sin.stride);
}

void CudaBackend::rope_append(const BatchView& batch, const Matrix& cos_sin, const Matrix& qkv,
                              const KvLayer& kv) {
  if (batch.n_tokens == 0) return;
  const int n_all_heads = static_cast<int>(qkv.cols / kv.head_dim);
  const RopeArguments arguments{batch.positions,
                                batch.sequence_of,
                                batch.page_table,
                                batch.max_pages,
                                static_cast<const float*>(cos_sin.data),
                                cos_sin.stride,
                                qkv.stride,
                                n_all_heads - 2 * kv.n_kv_heads,
                                kv};
  const dim3 grid(batch.n_tokens, ceil_div(n_all_heads, kHeadsPerBlock));
  const Queue queue = this->queue();
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    queue.launch("rotating queries and keys", rope_append_kernel<T>,
                 {grid, dim3(kWarp, kHeadsPerBlock)}, arguments, static_cast<T*>(qkv.data));
  });
}

}  // namespace faststream
