// Rotary position embedding, and the append of keys and values to their pages.
#include <algorithm>
#include <array>

#include "kernels/cuda/rope.cuh"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/kv_codes.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kCodedHeads = 4;
constexpr int kWide = kHeldEach;  // 16-bit elements of a 16-byte access
constexpr int kWideThreads = 128;

// The accurate sine and cosine: angles reach the context's length, where the fast ones have no
// digits left.
__global__ void rope_table_kernel(BatchView batch, Rope rope, int n_pairs, float* cos_sin,
                                  int64_t stride) {
  begin_kernel();
  const float position = static_cast<float>(batch.positions[blockIdx.x]);
  const float* frequencies = rope.frequencies;
  double log_scale = 0;  // of dynamic scaling
  if (rope.original > 0) {
    const int32_t length = rope_length(batch, blockIdx.x);
    if (length > rope.original && rope.long_frequencies != nullptr) {
      frequencies = rope.long_frequencies;
    } else if (length > rope.original) {
      log_scale = log(rope.dynamic_factor * length / rope.original - (rope.dynamic_factor - 1));
    }
  }
  float* row = cos_sin + blockIdx.x * stride;
  for (int i = static_cast<int>(threadIdx.x); i < n_pairs; i += static_cast<int>(blockDim.x)) {
    float frequency = frequencies[i];
    if (log_scale != 0) {
      frequency = static_cast<float>(frequency * exp(-log_scale * i / (n_pairs - 1)));
    }
    float sine = 0;
    float cosine = 0;
    sincosf(__fmul_rn(position, frequency), &sine, &cosine);
    row[2 * i] = rope.factor * cosine;
    row[2 * i + 1] = rope.factor * sine;
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
  int n_all_heads;  // those of keys and values, too
  HeadTransform transform;
  KvLayer kv;

  [[nodiscard]] __host__ __device__ int n_kept() const { return n_all_heads - n_heads; }
  /// Whether all heads are of one width.
  [[nodiscard]] bool is_even() const { return kv.values_in_keys || kv.v_head_dim == kv.head_dim; }
};

// Where a token is, and the page that is for it, if anything is kept. Of a step's batch alone, so
// it may be looked up before the inputs are there.
struct TokenPlace {
  int32_t position;
  int64_t page;

  __device__ TokenPlace(const RopeArguments& a, int64_t token)
      : position(a.positions[token]),
        page(a.n_kept() == 0
                 ? 0
                 : a.page_table[static_cast<int64_t>(a.sequence_of[token]) * a.max_pages +
                                position / kPageTokens]) {}

  /// Of a KV head, in rows of its width.
  [[nodiscard]] __device__ int64_t slot(const KvLayer& kv, int kv_head) const {
    return (page * kv.n_kv_heads + kv_head) * kPageTokens + position % kPageTokens;
  }
};

// A warp for each (token, head): queries first, then keys, then values.
template <typename T>
__global__ void rope_append_kernel(RopeArguments a, T* qkv) {
  allow_next_kernel();
  const int64_t token = blockIdx.x;
  const TokenPlace place(a, token);
  wait_for_inputs();
  const int head = static_cast<int>(blockIdx.y * kHeadsPerBlock + threadIdx.y);
  if (head >= a.n_all_heads) return;
  const int dim = a.kv.head_dim;
  T* row = qkv + token * a.qkv_stride;
  T* from = row + static_cast<int64_t>(head) * dim;
  const float* cos_sin = a.cos_sin + token * a.cos_sin_stride;
  const HeadTransform& transform = a.transform;
  if (head < a.n_heads) {
    const float factor = query_factor(transform, place.position);
    transform_head(from, dim, transform,
                   weights_of_head(transform.q_weight, transform.q_bias, head, dim), cos_sin,
                   a.rotated_dims,
                   [&](int i, float value) { from[i] = from_float<T>(value * factor); });
    return;
  }

  const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
  const int64_t slot = place.slot(a.kv, kv_head);
  const int first_value = a.n_heads + a.kv.n_kv_heads;
  if (head < first_value) {
    transform_head(
        from, dim, transform, weights_of_head(transform.k_weight, transform.k_bias, kv_head, dim),
        cos_sin, a.rotated_dims,
        [&](int i, float value) { store_element(a.kv.k, a.kv.dtype, slot * dim + i, value); });
    return;
  }
  HeadTransform of_values = transform;
  if (transform.v_weight == nullptr) of_values.norm = NormKind::none;
  const int v_dim = a.kv.v_head_dim;
  const T* values = row + static_cast<int64_t>(first_value) * dim;
  transform_head(
      values + static_cast<int64_t>(kv_head) * v_dim, v_dim, of_values,
      weights_of_head(transform.v_weight, nullptr, kv_head, v_dim), cos_sin, 0,
      [&](int i, float value) { store_element(a.kv.v, a.kv.dtype, slot * v_dim + i, value); });
}

// The same for heads of 64 kPairs elements that have norms before they are rotated as a whole, and
// pages of their type: a head is in its warp's registers, a lane's pairs as transform_head() has
// them.
template <typename T, int kPairs>
__global__ __launch_bounds__(kWarp* kHeadsPerBlock) void rope_append_held_kernel(RopeArguments a,
                                                                                 T* qkv) {
  allow_next_kernel();
  constexpr int kDim = 2 * kWarp * kPairs;
  const int64_t token = blockIdx.x;
  const TokenPlace place(a, token);
  wait_for_inputs();
  const int head = static_cast<int>(blockIdx.y * kHeadsPerBlock + threadIdx.y);
  if (head >= a.n_all_heads) return;
  const int first = 2 * static_cast<int>(threadIdx.x);
  T* from = qkv + token * a.qkv_stride + static_cast<int64_t>(head) * kDim + first;
  uint32_t words[kPairs];
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    words[p] = *reinterpret_cast<const uint32_t*>(from + 2 * kWarp * p);
  }
  const HeadTransform& transform = a.transform;
  const bool is_query = head < a.n_heads;
  const bool is_key = !is_query && head < a.n_heads + a.kv.n_kv_heads;
  const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
  HeadWeights weights;
  T* to = from;
  if (is_query) {
    weights = weights_of_head(transform.q_weight, transform.q_bias, head, kDim);
  } else {
    if (is_key) {
      weights = weights_of_head(transform.k_weight, transform.k_bias, kv_head, kDim);
    } else if (transform.v_weight != nullptr) {
      weights = weights_of_head(transform.v_weight, nullptr, kv_head, kDim);
    }
    to = static_cast<T*>(is_key ? a.kv.k : a.kv.v) + place.slot(a.kv, kv_head) * kDim + first;
  }

  float values[kPairs][2];
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    T pair[2];
    memcpy(pair, &words[p], sizeof pair);
    values[p][0] = to_float(pair[0]);
    values[p][1] = to_float(pair[1]);
  }
  if (weights.weight != nullptr) {
    const HeadNorm norm = measure_head(transform, kDim, weights, [&](const auto& use) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        use(first + 2 * kWarp * p, values[p][0]);
        use(first + 2 * kWarp * p + 1, values[p][1]);
      }
    });
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = first + 2 * kWarp * p;
      const auto weight = *reinterpret_cast<const float2*>(weights.weight + i);
      float2 bias = {};
      if (weights.bias != nullptr) bias = *reinterpret_cast<const float2*>(weights.bias + i);
      values[p][0] = norm.apply(values[p][0], weight.x, bias.x);
      values[p][1] = norm.apply(values[p][1], weight.y, bias.y);
    }
  }
  if (is_query || is_key) {
    const float factor = is_query ? query_factor(transform, place.position) : 1;
    const float* cos_sin = a.cos_sin + token * a.cos_sin_stride;
#pragma unroll
    for (int p = 0; p < kPairs / 2; ++p) {
      const auto rotation = *reinterpret_cast<const float4*>(cos_sin + 2 * (first + 2 * kWarp * p));
      const float cosines[2] = {rotation.x, rotation.z};
      const float sines[2] = {rotation.y, rotation.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& low = values[p][i];
        float& high = values[p + kPairs / 2][i];
        const float rotated = __fmaf_rn(low, cosines[i], -__fmul_rn(high, sines[i]));
        high = __fmaf_rn(high, cosines[i], __fmul_rn(low, sines[i])) * factor;
        low = rotated * factor;
      }
    }
  }
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    *reinterpret_cast<uint32_t*>(to + 2 * kWarp * p) = pack_pair<T>(values[p][0], values[p][1]);
  }
}

// The same of pages of codes: queries and keys are rotated once more, and what is kept is rounded,
// in shared memory.
template <typename T>
__global__ __launch_bounds__(kCodedHeads* kWarp) void rope_append_codes_kernel(RopeArguments a,
                                                                               T* qkv) {
  __shared__ float heads[kCodedHeads][kLargestHeadDim];
  allow_next_kernel();
  const int64_t token = blockIdx.x;
  const TokenPlace place(a, token);
  wait_for_inputs();
  const int head = static_cast<int>(blockIdx.y * kCodedHeads + threadIdx.y);
  if (head >= a.n_all_heads) return;
  float* elements = heads[threadIdx.y];
  const int dim = a.kv.head_dim;
  T* row = qkv + token * a.qkv_stride;
  const float* cos_sin = a.cos_sin + token * a.cos_sin_stride;
  const HeadTransform& transform = a.transform;
  const auto keep = [&](int i, float value) { elements[i] = value; };
  if (head < a.n_heads) {
    const float factor = query_factor(transform, place.position);
    T* query = row + static_cast<int64_t>(head) * dim;
    transform_head(query, dim, transform,
                   weights_of_head(transform.q_weight, transform.q_bias, head, dim), cos_sin,
                   a.rotated_dims, [&](int i, float value) { elements[i] = value * factor; });
    rotate_head_elements(elements, dim);
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kWarp) {
      query[i] = from_float<T>(elements[i]);
    }
    return;
  }

  const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
  const int64_t head_of_page = place.page * a.kv.n_kv_heads + kv_head;
  const int first_value = a.n_heads + a.kv.n_kv_heads;
  if (head < first_value) {
    transform_head(row + static_cast<int64_t>(head) * dim, dim, transform,
                   weights_of_head(transform.k_weight, transform.k_bias, kv_head, dim), cos_sin,
                   a.rotated_dims, keep);
    rotate_head_elements(elements, dim);
    encode_head(a.kv.format, elements, dim, place.position % kPageTokens,
                static_cast<std::byte*>(a.kv.k) + head_of_page * a.kv.k_head_bytes());
    return;
  }
  HeadTransform of_values = transform;
  if (transform.v_weight == nullptr) of_values.norm = NormKind::none;
  const int v_dim = a.kv.v_head_dim;
  transform_head(
      row + static_cast<int64_t>(first_value) * dim + static_cast<int64_t>(kv_head) * v_dim, v_dim,
      of_values, weights_of_head(transform.v_weight, nullptr, kv_head, v_dim), cos_sin, 0, keep);
  encode_head(a.kv.format, elements, v_dim, place.position % kPageTokens,
              static_cast<std::byte*>(a.kv.v) + head_of_page * a.kv.v_head_bytes());
}

// The same for heads that are rotated as a whole, without norms, and pages of their type: a block
// for each token, a thread for eight pairs of several heads, whose rotations it loads once.
template <typename T>
__global__ __launch_bounds__(kWideThreads) void rope_append_wide_kernel(RopeArguments a, T* qkv) {
  allow_next_kernel();
  const int64_t token = blockIdx.x;
  const TokenPlace place(a, token);
  wait_for_inputs();
  const int dim = a.kv.head_dim;
  const int half = dim / 2;
  const int lanes = half / kWide;  // of a head
  const int groups = kWideThreads / lanes;
  const int group = static_cast<int>(threadIdx.x) / lanes;
  if (group >= groups) return;
  const int first = static_cast<int>(threadIdx.x) % lanes * kWide;
  float cos_sin[2 * kWide];
  load_floats(a.cos_sin + token * a.cos_sin_stride + 2 * first, cos_sin);
  const float factor = query_factor(a.transform, place.position);
#pragma unroll 2
  for (int head = group; head < a.n_all_heads; head += groups) {
    T* from = qkv + token * a.qkv_stride + static_cast<int64_t>(head) * dim + first;
    const int kv_head = (head - a.n_heads) % a.kv.n_kv_heads;
    const int64_t slot = place.slot(a.kv, kv_head) * dim + first;
    if (head >= a.n_heads + a.kv.n_kv_heads) {
      T* to = static_cast<T*>(a.kv.v) + slot;
      const uint4 low = *reinterpret_cast<const uint4*>(from);
      const uint4 high = *reinterpret_cast<const uint4*>(from + half);
      *reinterpret_cast<uint4*>(to) = low;
      *reinterpret_cast<uint4*>(to + half) = high;
      continue;
    }
    const bool is_query = head < a.n_heads;
    float low[kWide];
    float high[kWide];
    load_floats(from, low);
    load_floats(from + half, high);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float cosine = cos_sin[2 * i];
      const float sine = cos_sin[2 * i + 1];
      const float rotated = __fmaf_rn(low[i], cosine, -__fmul_rn(high[i], sine));
      high[i] = __fmaf_rn(high[i], cosine, __fmul_rn(low[i], sine));
      low[i] = rotated;
      if (is_query) {
        low[i] *= factor;
        high[i] *= factor;
      }
    }
    T* to = is_query ? from : static_cast<T*>(a.kv.k) + slot;
    store_eight(to, low);
    store_eight(to + half, high);
  }
}

// The same where nothing is transformed, and pages are of the keys' type: queries stay, and a block
// copies the keys and values of a token, 16 bytes a thread at a time.
__global__ __launch_bounds__(kWideThreads) void append_kernel(RopeArguments a, const std::byte* kv,
                                                              int element_bytes) {
  allow_next_kernel();
  constexpr int kPiece = sizeof(uint4);
  const int64_t token = blockIdx.x;
  const TokenPlace place(a, token);
  wait_for_inputs();
  const int head_bytes = a.kv.head_dim * element_bytes;
  const std::byte* from = kv + token * a.qkv_stride * element_bytes;
  for (int at = static_cast<int>(threadIdx.x) * kPiece; at < a.n_kept() * head_bytes;
       at += kWideThreads * kPiece) {
    const int head = at / head_bytes;
    const bool is_key = head < a.kv.n_kv_heads;
    const int kv_head = is_key ? head : head - a.kv.n_kv_heads;
    const int64_t slot = place.slot(a.kv, kv_head);
    auto* pages = static_cast<std::byte*>(is_key ? a.kv.k : a.kv.v);
    *reinterpret_cast<uint4*>(pages + slot * head_bytes + at % head_bytes) =
        *reinterpret_cast<const uint4*>(from + at);
  }
}

bool begins_at_16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether heads stay as they are.
bool is_identity(const RopeArguments& a) {
  return a.rotated_dims == 0 && a.transform.norm == NormKind::none &&
         a.transform.query_scaling == 0;
}

// kv_rows: the keys and values alone.
bool is_copied(const RopeArguments& a, const Matrix& kv_rows) {
  return kv_rows.dtype == a.kv.dtype && is_identity(a) && a.is_even() &&
         a.kv.head_dim * dtype_size(kv_rows.dtype) % 16 == 0 &&
         rows_begin_at_16(kv_rows.data, kv_rows.stride, kv_rows.dtype) && begins_at_16(a.kv.k) &&
         begins_at_16(a.kv.v);
}

// Whether heads are rotated as a whole, and move in 16-bit words of 16 bytes.
bool moves_in_words(const RopeArguments& a, const Matrix& qkv) {
  return dtype_size(qkv.dtype) == 2 && qkv.dtype == a.kv.dtype && a.rotated_dims == a.kv.head_dim &&
         a.is_even() && a.kv.head_dim % (2 * kWide) == 0 && qkv.stride % kWide == 0 &&
         a.cos_sin_stride % 4 == 0 && begins_at_16(qkv.data) && begins_at_16(a.cos_sin) &&
         begins_at_16(a.kv.k) && begins_at_16(a.kv.v);
}

bool is_wide(const RopeArguments& a, const Matrix& qkv) {
  const int lanes = a.kv.head_dim / 2 / kWide;
  return moves_in_words(a, qkv) && a.transform.norm == NormKind::none && lanes > 0 &&
         lanes <= kWideThreads;
}

// Of widths for which rope_append_held_kernel() is made.
bool is_held(const RopeArguments& a, const Matrix& qkv) {
  const HeadTransform& t = a.transform;
  return moves_in_words(a, qkv) && !a.kv.values_in_keys && t.norm != NormKind::none &&
         !t.norm_after_rotation &&
         std::ranges::all_of(std::array{t.q_weight, t.q_bias, t.k_weight, t.k_bias, t.v_weight},
                             begins_at_16);
}

}  // namespace

void CudaBackend::rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) {
  if (batch.n_tokens == 0) return;
  queue().launch("computing rotations", rope_table_kernel, {batch.n_tokens, 64}, batch, rope,
                 static_cast<int>(cos_sin.cols / 2), static_cast<float*>(cos_sin.data),
                 cos_sin.stride);
}

void CudaBackend::rope_append(const BatchView& batch, const Matrix& qkv, int n_heads,
                              const Matrix& cos_sin, const HeadTransform& transform,
                              const KvLayer& kv) {
  if (batch.n_tokens == 0) return;
  const int64_t q_dim = int64_t{n_heads} * kv.head_dim;
  const int n_kept = qkv.cols == q_dim ? 0 : (kv.values_in_keys ? 1 : 2) * kv.n_kv_heads;
  const int n_all_heads = n_heads + n_kept;
  const RopeArguments arguments{.positions = batch.positions,
                                .sequence_of = batch.sequence_of,
                                .page_table = batch.page_table,
                                .max_pages = batch.max_pages,
                                .cos_sin = static_cast<const float*>(cos_sin.data),
                                .cos_sin_stride = cos_sin.stride,
                                .rotated_dims = static_cast<int>(cos_sin.cols),
                                .qkv_stride = qkv.stride,
                                .n_heads = n_heads,
                                .n_all_heads = n_all_heads,
                                .transform = transform,
                                .kv = kv};
  if (n_all_heads == n_heads && is_identity(arguments) && !kv.is_coded()) return;
  const Queue queue = this->queue();
  if (kv.is_coded()) {
    with_float_type(qkv.dtype, [&](auto zero) {
      using T = decltype(zero);
      queue.launch(
          "rounding keys and values", rope_append_codes_kernel<T>,
          {dim3(batch.n_tokens, ceil_div(n_all_heads, kCodedHeads)), dim3(kWarp, kCodedHeads)},
          arguments, static_cast<T*>(qkv.data));
    });
    return;
  }
  const Matrix kv_rows = qkv.columns(q_dim, qkv.cols - q_dim);
  if (is_copied(arguments, kv_rows)) {
    queue.launch("storing keys and values", append_kernel, {batch.n_tokens, kWideThreads},
                 arguments, static_cast<const std::byte*>(kv_rows.data),
                 static_cast<int>(dtype_size(qkv.dtype)));
    return;
  }
  const dim3 grid(batch.n_tokens, ceil_div(n_all_heads, kHeadsPerBlock));
  with_float_type(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (is_wide(arguments, qkv)) {
        queue.launch("rotating queries and keys", rope_append_wide_kernel<T>,
                     {batch.n_tokens, kWideThreads}, arguments, static_cast<T*>(qkv.data));
        return;
      }
      const auto held = kv.head_dim == 128   ? rope_append_held_kernel<T, 2>
                        : kv.head_dim == 256 ? rope_append_held_kernel<T, 4>
                                             : nullptr;
      if (held != nullptr && is_held(arguments, qkv)) {
        queue.launch("rotating queries and keys", held, {grid, dim3(kWarp, kHeadsPerBlock)},
                     arguments, static_cast<T*>(qkv.data));
        return;
      }
    }
    queue.launch("rotating queries and keys", rope_append_kernel<T>,
                 {grid, dim3(kWarp, kHeadsPerBlock)}, arguments, static_cast<T*>(qkv.data));
  });
}

void CudaBackend::append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) {
  check_heads(kv);
  rope_append(batch, kv_rows, 0, {nullptr, DType::f32, batch.n_tokens, 0}, {}, kv);
}

}  // namespace faststream
