// The selective scan: a thread has a channel, its state in registers while tokens pass. B and C,
// which all channels share, are read for several tokens at a time; so are x and the steps, lest
// each token wait for its own.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"
#include "support/error.h"

namespace faststream {

namespace {

constexpr int kThreads = 128;
constexpr int kTile = 8;  // tokens
constexpr int kMostStates = 64;

struct ScanArguments {
  BatchView batch;
  Matrix x;
  Matrix steps;
  Matrix b;
  Matrix c;
  SelectiveScan scan;
  StateLayer states;
  Matrix out;
};

template <int kStates>
__global__ void __launch_bounds__(kThreads) scan_kernel(const ScanArguments a) {
  begin_kernel();
  __shared__ float b[kTile][kStates];
  __shared__ float c[kTile][kStates];
  const int s = blockIdx.y;
  const int64_t channels = a.x.cols;
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool has_channel = channel < channels;
  const int state_size = a.scan.state_size;
  const int64_t first = a.batch.query_start[s];
  const int n_tokens = a.batch.query_start[s + 1] - static_cast<int>(first);
  if (n_tokens == 0) return;

  const auto place = [&](int32_t n) { return a.states.data + n * a.states.stride + channel; };
  float state[kStates];
  float rates[kStates];  // of powers of two
  const float* from = place(a.batch.state_from[s]);
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    const bool is_there = has_channel && n < state_size;
    constexpr float kLog2E = 1.4426950408889634F;
    state[n] = is_there ? from[n * channels] : 0.0F;
    rates[n] = is_there ? a.scan.rates[n * channels + channel] * kLog2E : 0.0F;
  }
  const auto store = [&](float* to) {
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (has_channel && n < state_size) to[n * channels] = state[n];
    }
  };
  const float bias = has_channel ? a.scan.steps[channel] : 0.0F;
  const float skip = has_channel ? a.scan.skips[channel] : 0.0F;
  const int32_t kv_len = a.batch.kv_len[s];
  const int until_border = border_of(kv_len) - (kv_len - n_tokens);
  const int32_t border = a.batch.state_border[s];

  for (int begin = 0; begin < n_tokens; begin += kTile) {
    const int count = min(kTile, n_tokens - begin);
    const int64_t row = first + begin;
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kStates; i += kThreads) {
      const int t = i / kStates;
      const int n = i % kStates;
      const bool is_there = t < count && n < state_size;
      const auto element = [&](const Matrix& m) {
        return is_there ? static_cast<const float*>(m.data)[(row + t) * m.stride + n] : 0.0F;
      };
      b[t][n] = element(a.b);
      c[t][n] = element(a.c);
    }
    float x[kTile];
    float steps[kTile];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const bool is_there = has_channel && t < count;
      x[t] = is_there ? load_element(a.x.data, a.x.dtype, (row + t) * a.x.stride + channel) : 0.0F;
      steps[t] = is_there
                     ? static_cast<const float*>(a.steps.data)[(row + t) * a.steps.stride + channel]
                     : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      if (t >= count) break;
      constexpr float kLinearFrom = 20;  // where adding 1 to e^g changes nothing
      const float gate = steps[t] + bias;
      const float step = gate > kLinearFrom ? gate : log1pf(expf(gate));
      const float taken = step * x[t];
      float sum = skip * x[t];
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        state[n] = fmaf(exp2f(rates[n] * step), state[n], b[t][n] * taken);
        sum = fmaf(c[t][n], state[n], sum);
      }
      if (has_channel) {
        store_element(a.out.data, a.out.dtype, (row + t) * a.out.stride + channel, sum);
      }
      if (border != 0 && begin + t + 1 == until_border) store(place(border));
    }
  }
  store(place(a.batch.state_to[s]));
}

// The kernel for states of so many elements.
template <int kStates = 16>
void launch_scan(const Queue& queue, const ScanArguments& arguments) {
  if constexpr (kStates < kMostStates) {
    if (arguments.scan.state_size > kStates) return launch_scan<2 * kStates>(queue, arguments);
  }
  const Grid grid{{static_cast<unsigned>((arguments.x.cols + kThreads - 1) / kThreads),
                   static_cast<unsigned>(arguments.batch.n_sequences)},
                  kThreads};
  queue.launch("scanning", scan_kernel<kStates>, grid, arguments);
}

}  // namespace

void CudaBackend::scan(const BatchView& batch, const Matrix& x, const Matrix& steps,
                       const Matrix& b, const Matrix& c, const SelectiveScan& scan,
                       const StateLayer& states, const Matrix& out) {
  if (scan.state_size > kMostStates) {
    throw Error("selective scans with states of more than " + std::to_string(kMostStates) +
                " elements do not run on a GPU; use --device cpu");
  }
  if (batch.n_tokens == 0) return;
  launch_scan(queue(), {batch, x, steps, b, c, scan, states, out});
}

}  // namespace faststream
