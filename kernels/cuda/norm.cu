// Normalization of rows, one block a row. A decode step's row (16 kB) is latency bound: 2 us
// predicted. Passes after the first find the row in the L1 cache.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = kRowLanes;

// kUsual: what most models have, RMS norms whose results are stored. Its loops have no conditions.
// kVector: see measure_row().
template <typename X, typename T, bool kUsual, int kVector>
__global__ __launch_bounds__(kThreads) void norm_kernel(const X* x, int64_t x_stride, Norm norm,
                                                        bool add, int64_t n, T* out,
                                                        int64_t out_stride) {
  __shared__ RowParts parts;
  begin_kernel();
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;

  if (kUsual) {
    norm.kind = NormKind::rms;
    norm.bias = nullptr;
  }
  RowTeam<kThreads> team{static_cast<int>(threadIdx.x), 0, parts};
  const MeasuredNorm measured = measure_row<kVector>(x, n, norm, team);

  // A thread writes what only it has read.
#pragma unroll 4
  for (int64_t c = kVector * threadIdx.x; c < n; c += kVector * kThreads) {
    float values[kVector];
    load_floats(x + c, values);
    T results[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float value = measured.apply(values[i], c + i);
      if (!kUsual && add) value += to_float(out[c + i]);
      results[i] = from_float<T>(value);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[c + i] = results[i];
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
      const bool eights = x.cols % 8 == 0 && rows_begin_at_16(x.data, x.stride, x.dtype);
      const auto kernel = eights
                              ? (usual ? norm_kernel<X, T, true, 8> : norm_kernel<X, T, false, 8>)
                              : (usual ? norm_kernel<X, T, true, 1> : norm_kernel<X, T, false, 1>);
      queue.launch("normalizing", kernel, {static_cast<unsigned>(x.rows), kThreads},
                   static_cast<const X*>(x.data), x.stride, norm, output == OutputMode::add, x.cols,
                   static_cast<T*>(out.data), out.stride);
    });
  });
}

}  // namespace faststream
