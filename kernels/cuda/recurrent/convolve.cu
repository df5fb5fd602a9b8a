// Sums over the last elements of each channel.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 128;

struct ConvolveArguments {
  BatchView batch;
  Matrix x;
  Convolution convolution;
  StateLayer states;
  Matrix out;
};

// A thread has one channel of one token: it gives the sum, and writes the element where a state
// wants it.
__global__ void convolve_kernel(const ConvolveArguments a) {
  begin_kernel();
  const int64_t channels = a.x.cols;
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= channels) return;
  const int64_t t = blockIdx.y;
  const int32_t s = a.batch.sequence_of[t];
  const int32_t tail = a.convolution.taps - 1;
  const auto state = [&](int32_t n) { return a.states.data + n * a.states.stride + c; };
  const float* before = state(a.batch.state_from[s]);
  // Of the sequence's tokens in this step, from 0 on; before them what the state has.
  const int32_t place = static_cast<int32_t>(t) - a.batch.query_start[s];
  const auto element = [&](int32_t i) {
    if (i < 0) return before[(tail + i) * channels];
    return load_element(a.x.data, a.x.dtype, (a.batch.query_start[s] + i) * a.x.stride + c);
  };

  float sum = a.convolution.bias != nullptr ? a.convolution.bias[c] : 0.0F;
  float own = 0;
  for (int32_t i = 0; i <= tail; ++i) {
    own = element(place - tail + i);
    sum = fmaf(a.convolution.weight[i * channels + c], own, sum);
  }
  store_element(a.out.data, a.out.dtype, t * a.out.stride + c,
                activate(a.convolution.activation, sum));

  // The last `tail` elements after so many of the step's tokens.
  const auto keep = [&](int32_t n_tokens, float* to) {
    const int32_t slot = place - (n_tokens - tail);
    if (slot >= 0 && slot < tail) to[slot * channels] = own;
    if (place != 0) return;
    for (int32_t i = 0; i < tail - n_tokens; ++i)
      to[i * channels] = before[(i + n_tokens) * channels];
  };
  const int32_t n_new = a.batch.query_start[s + 1] - a.batch.query_start[s];
  keep(n_new, state(a.batch.state_to[s]));
  const int32_t until_border = border_of(a.batch.kv_len[s]) - (a.batch.kv_len[s] - n_new);
  if (a.batch.state_border[s] != 0 && until_border > 0) {
    keep(until_border, state(a.batch.state_border[s]));
  }
}

}  // namespace

void CudaBackend::convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                           const StateLayer& states, const Matrix& out) {
  if (batch.n_tokens == 0) return;
  const auto blocks = static_cast<unsigned>((x.cols + kThreads - 1) / kThreads);
  queue().launch("convolving", convolve_kernel,
                 {{blocks, static_cast<unsigned>(batch.n_tokens)}, kThreads},
                 ConvolveArguments{batch, x, convolution, states, out});
}

}  // namespace faststream
