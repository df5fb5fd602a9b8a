// Normalization of rows, one block a row. A decode step's row (16 kB) is latency bound: 2 us
// predicted. Rows of a usual length stay in registers; of others passes after the first find the
// row in the L1 cache.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = kRowLanes;

// What most models have: an RMS norm of rows that can be held, whose results are stored.
template <typename X, typename T, int kTurns>
__global__ __launch_bounds__(kThreads) void rms_norm_kernel(const X* x, int64_t x_stride, Norm norm,
                                                            int n, T* out, int64_t out_stride) {
  __shared__ RowParts parts;
  begin_kernel();
  norm.kind = NormKind::rms;
  norm.bias = nullptr;
  HeldRow<X, kTurns> row;
  row.load(x + blockIdx.x * x_stride, n);
  RowTeam<kThreads> team{static_cast<int>(threadIdx.x), 0, parts};
  const MeasuredNorm measured = row.measured(n, norm, team);
  out += blockIdx.x * out_stride;
  row.for_each(n, [&](int /*turn*/, int c, float(&values)[kHeldEach]) {
    normalize_eight(measured, c, values);
    store_eight(out + c, values);
  });
}

// kVector: see measure_row().
template <typename X, typename T, int kVector>
__global__ __launch_bounds__(kThreads) void norm_kernel(const X* x, int64_t x_stride, Norm norm,
                                                        bool add, int64_t n, T* out,
                                                        int64_t out_stride) {
  __shared__ RowParts parts;
  begin_kernel();
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;

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
      if (add) value += to_float(out[c + i]);
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
      const Grid grid{static_cast<unsigned>(x.rows), kThreads};
      const auto* rows = static_cast<const X*>(x.data);
      auto* results = static_cast<T*>(out.data);
      if (usual && can_hold(x) && can_hold(out) && can_hold(norm)) {
        with_held_turns(x.cols, [&]<int kTurns>() {
          queue.launch("normalizing", rms_norm_kernel<X, T, kTurns>, grid, rows, x.stride, norm,
                       static_cast<int>(x.cols), results, out.stride);
        });
        return;
      }
      const bool eights = x.cols % 8 == 0 && rows_begin_at_16(x.data, x.stride, x.dtype);
      queue.launch("normalizing", eights ? norm_kernel<X, T, 8> : norm_kernel<X, T, 1>, grid, rows,
                   x.stride, norm, output == OutputMode::add, x.cols, results, out.stride);
    });
  });
}

}  // namespace faststream
