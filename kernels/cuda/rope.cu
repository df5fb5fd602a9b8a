// Rotary position embedding, and the append of keys and values to their pages.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kHeadsPerBlock = 8;

// The accurate sine and cosine: angles reach the context's length, where the fast ones have no
// digits left.
__global__ void rope_table_kernel(const int32_t* positions, const float* inv_freq, float factor,
                                  int n_pairs, float* cos_sin, int64_t stride) {
  begin_kernel();
  const float position = static_cast<float>(positions[blockIdx.x]);
  float* row = cos_sin + blockIdx.x * stride;
  for (int i = static_cast<int>(threadIdx.x); i < n_pairs; i += static_cast<int>(blockDim.x)) {
    float sine = 0;
    float cosine = 0;
    sincosf(__fmul_rn(position, inv_freq[i]), &sine, &cosine);
    row[2 * i] = factor * cosine;
    row[2 * i + 1] = factor * sine;
  }
}

struct RopeArguments {
  const int32_t* positions;
  const int32_t* sequence_of;
  const int32_t* page_table;
  int32_t max_pages;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int rotated_dims;
  int64_t qkv_stride;
  int n_heads;
  HeadTransform transform;
  KvLayer kv;
};

// Element i of a head becomes (element - mean) · factor · weight[i].
struct HeadNorm {
  float mean = 0;
  float factor = 1;
  const float* weight = nullptr;  // null: ones
};

// By a warp.
template <typename T>
__device__ HeadNorm measure_head(const HeadTransform& transform, const T* head, int dim,
                                 const float* weight) {
  const int lane = static_cast<int>(threadIdx.x);
  HeadNorm norm;
  norm.weight = weight;
  if (transform.norm == NormKind::layer) {
    float sum = 0;
    for (int i = lane; i < dim; i += kWarp) sum += to_float(head[i]);
    norm.mean = warp_sum(sum) / static_cast<float>(dim);
  }
  float squares = 0;
  for (int i = lane; i < dim; i += kWarp) {
    const float value = to_float(head[i]) - norm.mean;
    squares += value * value;
  }
  norm.factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + transform.eps);
  return norm;
}

// A warp for each (token, head): queries first, then keys, then values.
template <typename T>
__global__ void rope_append_kernel(RopeArguments a, T* qkv) {
  begin_kernel();
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y * kHeadsPerBlock + threadIdx.y);
  if (head >= a.n_heads + 2 * a.kv.n_kv_heads) return;
  const int dim = a.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x);
  T* from = qkv + token * a.qkv_stride + static_cast<int64_t>(head) * dim;
  const float* cos_sin = a.cos_sin + token * a.cos_sin_stride;

  const bool is_query = head < a.n_heads;
  const bool is_key = !is_query && head < a.n_heads + a.kv.n_kv_heads;
  const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
  const int32_t position = a.positions[token];
  void* cache = is_key ? a.kv.k : a.kv.v;
  int64_t slot = 0;
  if (!is_query) {
    const int64_t page = a.page_table[static_cast<int64_t>(a.sequence_of[token]) * a.max_pages +
                                      position / kPageTokens];
    slot = ((page * a.kv.n_kv_heads + kv_head) * kPageTokens + position % kPageTokens) * dim;
  }

  const HeadTransform& transform = a.transform;
  HeadNorm norm;
  if (transform.norm != NormKind::none && (is_query || is_key)) {
    norm = measure_head(transform, from, dim,
                        is_query ? transform.q_weight + static_cast<int64_t>(head) * dim
                                 : transform.k_weight + static_cast<int64_t>(kv_head) * dim);
  }
  float factor = 1;
  if (is_query && transform.query_scaling != 0) {
    const auto steps = static_cast<float>(position / transform.query_scaling_from);
    factor += transform.query_scaling * logf(1.0F + steps);
  }

  const auto load = [&](int i) {
    const float value = to_float(from[i]);
    return norm.weight != nullptr ? (value - norm.mean) * norm.factor * norm.weight[i] : value;
  };
  const auto store = [&](int i, float value) {
    if (is_query) {
      from[i] = from_float<T>(value * factor);
    } else {
      store_element(cache, a.kv.dtype, slot + i, value);
    }
  };
  const int half = is_query || is_key ? a.rotated_dims / 2 : 0;
  for (int i = lane; i < half; i += kWarp) {
    const float first = load(i);
    const float second = load(i + half);
    const float cosine = cos_sin[2 * i];
    const float sine = cos_sin[2 * i + 1];
    store(i, first * cosine - second * sine);
    store(i + half, second * cosine + first * sine);
  }
  for (int i = 2 * half + lane; i < dim; i += kWarp) store(i, load(i));
}

}  // namespace

void CudaBackend::rope_table(const BatchView& batch, const float* inv_freq, float factor,
                             const Matrix& cos_sin) {
  if (batch.n_tokens == 0) return;
  queue().launch("computing rotations", rope_table_kernel, {batch.n_tokens, 64}, batch.positions,
                 inv_freq, factor, static_cast<int>(cos_sin.cols / 2),
                 static_cast<float*>(cos_sin.data), cos_sin.stride);
}

void CudaBackend::rope_append(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                              const HeadTransform& transform, const KvLayer& kv) {
  if (batch.n_tokens == 0) return;
  const int n_all_heads = static_cast<int>(qkv.cols / kv.head_dim);
  const RopeArguments arguments{.positions = batch.positions,
                                .sequence_of = batch.sequence_of,
                                .page_table = batch.page_table,
                                .max_pages = batch.max_pages,
                                .cos_sin = static_cast<const float*>(cos_sin.data),
                                .cos_sin_stride = cos_sin.stride,
                                .rotated_dims = static_cast<int>(cos_sin.cols),
                                .qkv_stride = qkv.stride,
                                .n_heads = n_all_heads - 2 * kv.n_kv_heads,
                                .transform = transform,
                                .kv = kv};
  const dim3 grid(batch.n_tokens, ceil_div(n_all_heads, kHeadsPerBlock));
  const Queue queue = this->queue();
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    queue.launch("rotating queries and keys", rope_append_kernel<T>,
                 {grid, dim3(kWarp, kHeadsPerBlock)}, arguments, static_cast<T*>(qkv.data));
  });
}

void CudaBackend::append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) {
  rope_append(batch, kv_rows, {nullptr, DType::f32, batch.n_tokens, 0}, {}, kv);
}

}  // namespace faststream
