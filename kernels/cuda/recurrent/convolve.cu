// Sums over the last elements of each channel.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 4;  // of a thread, where memory is aligned
constexpr int kTokens = 4;    // of a thread, one after the other: they read the same elements

struct ConvolveArguments {
  BatchView batch;
  Matrix x;
  Convolution convolution;
  StateLayer states;
  Matrix out;
};

template <int kEach>
struct Elements {
  float values[kEach];
};

template <int kEach>
__device__ Elements<kEach> load_state(const float* from) {
  Elements<kEach> elements;
  load_floats<kEach>(from, elements.values);
  return elements;
}

template <int kEach>
__device__ void store_state(float* to, const Elements<kEach>& elements) {
  if constexpr (kEach == 4) {
    const float* v = elements.values;
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
    for (int i = 0; i < kEach; ++i) to[i] = elements.values[i];
  }
}

// kEach channels of one sequence: what it had before the step, and the elements of the step's
// tokens.
template <typename T, int kEach>
struct Text {
  const float* before;  // [tail, channels]
  const T* x;
  int64_t x_stride;
  int64_t channels;
  int32_t tail;

  // Of token i of the step, from 0 on, or before it.
  __device__ Elements<kEach> element(int32_t i) const {
    if (i < 0) return load_state<kEach>(before + (tail + i) * channels);
    Elements<kEach> elements;
    load_floats<kEach>(x + i * x_stride, elements.values);
    return elements;
  }

  // Writes of the last `tail` elements after n_tokens of the step what token `place`, whose element
  // this is, has to: its own, and if it is the first one those before it.
  __device__ void keep(int32_t place, const Elements<kEach>& own, int32_t n_tokens,
                       float* to) const {
    const int32_t slot = place - (n_tokens - tail);
    if (slot >= 0 && slot < tail) store_state<kEach>(to + slot * channels, own);
    if (place != 0) return;
    for (int32_t i = 0; i < tail - n_tokens; ++i) {
      store_state<kEach>(to + i * channels, load_state<kEach>(before + (i + n_tokens) * channels));
    }
  }
};

// kEach channels, from c on, of token t.
template <typename T, int kEach>
__device__ void convolve_token(const ConvolveArguments& a, int64_t t, int64_t c) {
  const int32_t s = a.batch.sequence_of[t];
  const int32_t begin = a.batch.query_start[s];
  const int32_t n_new = a.batch.query_start[s + 1] - begin;
  const int32_t place = static_cast<int32_t>(t) - begin;
  const int32_t tail = a.convolution.taps - 1;
  float* states = a.states.data + c;
  const Text<T, kEach> text{states + a.batch.state_from[s] * a.states.stride,
                            static_cast<const T*>(a.x.data) + begin * a.x.stride + c, a.x.stride,
                            a.x.cols, tail};

  float sums[kEach] = {};
  if (a.convolution.bias != nullptr) load_floats<kEach>(a.convolution.bias + c, sums);
  Elements<kEach> own;
  for (int32_t i = 0; i <= tail; ++i) {
    own = text.element(place - tail + i);
    float weights[kEach];
    load_floats<kEach>(a.convolution.weight + i * a.x.cols + c, weights);
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[j] = fmaf(weights[j], own.values[j], sums[j]);
  }
  T* out = static_cast<T*>(a.out.data) + t * a.out.stride + c;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    out[j] = from_float<T>(activate(a.convolution.activation, sums[j]));
  }

  text.keep(place, own, n_new, states + a.batch.state_to[s] * a.states.stride);
  const int32_t until_border = border_of(a.batch.kv_len[s]) - (a.batch.kv_len[s] - n_new);
  if (a.batch.state_border[s] != 0 && until_border > 0) {
    text.keep(place, own, until_border, states + a.batch.state_border[s] * a.states.stride);
  }
}

template <typename T, int kEach>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvolveArguments a) {
  begin_kernel();
  const int64_t c = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (c >= a.x.cols) return;
  const int64_t first = int64_t{blockIdx.y} * kTokens;
  const int64_t end = min(first + kTokens, int64_t{a.batch.n_tokens});
  for (int64_t t = first; t < end; ++t) convolve_token<T, kEach>(a, t, c);
}

bool is_aligned(const void* data, int64_t stride, size_t element) {
  return reinterpret_cast<uintptr_t>(data) % (kChannels * element) == 0 && stride % kChannels == 0;
}

template <typename T>
void launch(const Queue& queue, const ConvolveArguments& a) {
  const bool aligned = a.x.cols % kChannels == 0 && is_aligned(a.x.data, a.x.stride, sizeof(T)) &&
                       is_aligned(a.out.data, a.out.stride, sizeof(T)) &&
                       is_aligned(a.states.data, a.states.stride, sizeof(float)) &&
                       is_aligned(a.convolution.weight, 0, sizeof(float)) &&
                       is_aligned(a.convolution.bias, 0, sizeof(float));
  const int64_t of_block = int64_t{kThreads} * (aligned ? kChannels : 1);
  const Grid grid{{static_cast<unsigned>((a.x.cols + of_block - 1) / of_block),
                   static_cast<unsigned>((a.batch.n_tokens + kTokens - 1) / kTokens)},
                  kThreads};
  if (aligned) {
    queue.launch("convolving", convolve_kernel<T, kChannels>, grid, a);
  } else {
    queue.launch("convolving", convolve_kernel<T, 1>, grid, a);
  }
}

}  // namespace

void CudaBackend::convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                           const StateLayer& states, const Matrix& out) {
  if (batch.n_tokens == 0 || step_kernel_.convolve(batch, x, convolution, states, out)) return;
  const ConvolveArguments arguments{batch, x, convolution, states, out};
  with_float_type(x.dtype, [&](auto type) { launch<decltype(type)>(queue(), arguments); });
}

}  // namespace faststream
