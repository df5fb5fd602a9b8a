// Normalization of rows, one block a row. A decode step's row (16 kB) is latency bound: 2 us
// predicted. Passes after the first find the row in the L1 cache.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 512;

// Of all threads' values; `warp_sums` is not used for anything else.
__device__ float block_sum(float value, float (&warp_sums)[kThreads / kWarp]) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (const float part : warp_sums) sum += part;
  return sum;
}

// kUsual: what most models have, RMS norms whose results are stored. Its loops have no conditions.
template <typename X, typename T, bool kUsual>
__global__ __launch_bounds__(kThreads) void norm_kernel(const X* x, int64_t x_stride, Norm norm,
                                                        bool add, int64_t n, T* out,
                                                        int64_t out_stride) {
  __shared__ float warp_sums[2][kThreads / kWarp];
  begin_kernel();
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;

  const NormKind kind = kUsual ? NormKind::rms : norm.kind;
  const float* bias = kUsual ? nullptr : norm.bias;
  const bool adds = !kUsual && add;
  float mean = 0;
  float factor = 1;
  if (kind == NormKind::layer) {
    float sum = 0;
#pragma unroll 8
    for (int64_t c = threadIdx.x; c < n; c += kThreads) sum += to_float(x[c]);
    mean = block_sum(sum, warp_sums[0]) / static_cast<float>(n);
  }
  if (kind != NormKind::none) {
    float squares = 0;
#pragma unroll 8
    for (int64_t c = threadIdx.x; c < n; c += kThreads) {
      const float value = to_float(x[c]) - mean;
      squares += value * value;
    }
    squares = block_sum(squares, warp_sums[1]);
    factor = 1.0F / sqrtf(squares / static_cast<float>(n) + norm.eps);
  }

  // A thread writes what only it reads from here on: out may be x.
#pragma unroll 8
  for (int64_t c = threadIdx.x; c < n; c += kThreads) {
    float value = to_float(x[c]);
    if (kind != NormKind::none) value = (value - mean) * factor * norm.weight[c];
    if (bias != nullptr) value += bias[c];
    if (adds) value += to_float(out[c]);
    out[c] = from_float<T>(value);
  }
}

}  // namespace

void CudaBackend::norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) {
  if (x.rows == 0) return;
  const Queue queue = this->queue();
  with_float_type(x.dtype, [&](auto x_zero) {
    with_float_type(out.dtype, [&](auto zero) {
      using X = decltype(x_zero);
      using T = decltype(zero);
      const bool usual = norm.kind == NormKind::rms && output == OutputMode::store;
      queue.launch("normalizing", usual ? norm_kernel<X, T, true> : norm_kernel<X, T, false>,
                   {static_cast<unsigned>(x.rows), kThreads}, static_cast<const X*>(x.data),
                   x.stride, norm, output == OutputMode::add, x.cols, static_cast<T*>(out.data),
                   out.stride);
    });
  });
}

}  // namespace faststream
