// Normalization of rows, a block each, or a warp where a row is short: a block of 512 threads that
// had 64 of them work took 20 us for 2,048 rows of 512 elements. A decode step's row (16 kB) is
// latency bound: 2 us predicted. Rows of a usual length stay in registers; of others passes after
// the first find the row in the L1 cache.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 4;  // of a block, with a row each

template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  explicit Rows(const Matrix& m) : data(static_cast<T*>(m.data)), stride(m.stride) {}
  __device__ T* operator[](int64_t r) const { return data + r * stride; }
};

// Any norm of rows of at most kTurns · kWarp · kHeldEach elements. copy: if it has data, gets the
// results, too.
template <typename X, typename T, typename Copy, int kTurns>
__global__ __launch_bounds__(kWarps* kWarp) void short_norm_kernel(Rows<const X> x, Norm norm,
                                                                   bool add, int64_t rows, int n,
                                                                   Rows<T> out, Rows<Copy> copy) {
  begin_kernel();
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (r >= rows) return;
  HeldRow<X, kTurns, kWarp> row;
  row.load(x[r], n);
  RowWarp<kTurns> team;
  const MeasuredNorm measured = row.measured(n, norm, team);
  row.for_each(n, [&](int /*turn*/, int c, float(&values)[kHeldEach]) {
    normalize_eight(measured, c, values);
    if (add) {
      float before[kHeldEach];
      load_floats(out[r] + c, before);
#pragma unroll
      for (int i = 0; i < kHeldEach; ++i) values[i] += before[i];
    }
    store_eight(out[r] + c, values);
    if (copy.data != nullptr) store_eight(copy[r] + c, values);
  });
}

bool are_short(const Matrix& x, const Norm& norm, const Matrix& out) {
  return can_hold<kWarp>(x) && can_hold<kWarp>(out) && can_hold(norm);
}

template <typename X, typename T, typename Copy>
void norm_short(const Matrix& x, const Norm& norm, bool add, const Matrix& out, const Matrix& copy,
                const Queue& queue) {
  with_held_turns<kWarp>(x.cols, [&]<int kTurns>() {
    queue.launch("normalizing", short_norm_kernel<X, T, Copy, kTurns>,
                 {static_cast<unsigned>(ceil_div(x.rows, kWarps)), kWarps * kWarp},
                 Rows<const X>(x), norm, add, x.rows, static_cast<int>(x.cols), Rows<T>(out),
                 Rows<Copy>(copy));
  });
}

// What most models have: an RMS norm of rows that can be held, whose results are stored.
template <typename X, typename T, int kTurns>
__global__ __launch_bounds__(kRowLanes) void rms_norm_kernel(const X* x, int64_t x_stride,
                                                             Norm norm, int n, T* out,
                                                             int64_t out_stride) {
  __shared__ RowParts parts;
  allow_next_kernel();
  HeldRow<float, kTurns> weights;
  weights.load(norm.weight, n);
  wait_for_inputs();
  norm.kind = NormKind::rms;
  norm.bias = nullptr;
  HeldRow<X, kTurns> row;
  row.load(x + blockIdx.x * x_stride, n);
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  const MeasuredNorm measured = row.measured(n, norm, team);
  out += blockIdx.x * out_stride;
  row.for_each(n, [&](int turn, int c, float(&values)[kHeldEach]) {
    normalize_eight(measured, weights.eight(turn), values);
    store_eight(out + c, values);
  });
}

// kVector: see measure_row().
template <typename X, typename T, int kVector>
__global__ __launch_bounds__(kRowLanes) void norm_kernel(const X* x, int64_t x_stride, Norm norm,
                                                         bool add, int64_t n, T* out,
                                                         int64_t out_stride) {
  __shared__ RowParts parts;
  begin_kernel();
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;

  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  const MeasuredNorm measured = measure_row<kVector>(x, n, norm, team);

  // A thread writes what only it has read.
#pragma unroll 4
  for (int64_t c = kVector * threadIdx.x; c < n; c += kVector * kRowLanes) {
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
  if (x.rows == 0 || step_kernel_.norm(x, norm, output == OutputMode::add, out)) return;
  const Queue queue = this->queue();
  with_float_type(x.dtype, [&](auto x_zero) {
    with_float_type(out.dtype, [&](auto zero) {
      using X = decltype(x_zero);
      using T = decltype(zero);
      const bool usual = norm.kind == NormKind::rms && output == OutputMode::store;
      const bool add = output == OutputMode::add;
      const Grid grid{static_cast<unsigned>(x.rows), kRowLanes};
      const auto* rows = static_cast<const X*>(x.data);
      auto* results = static_cast<T*>(out.data);
      if (are_short(x, norm, out)) return norm_short<X, T, T>(x, norm, add, out, {}, queue);
      if (usual && can_hold(x) && can_hold(out) && can_hold(norm)) {
        with_held_turns(x.cols, [&]<int kTurns>() {
          queue.launch("normalizing", rms_norm_kernel<X, T, kTurns>, grid, rows, x.stride, norm,
                       static_cast<int>(x.cols), results, out.stride);
        });
        return;
      }
      const bool eights = x.cols % 8 == 0 && rows_begin_at_16(x.data, x.stride, x.dtype);
      queue.launch("normalizing", eights ? norm_kernel<X, T, 8> : norm_kernel<X, T, 1>, grid, rows,
                   x.stride, norm, add, x.cols, results, out.stride);
    });
  });
}

void CudaBackend::norm_stream(const Matrix& x, const Norm& norm, const Matrix& copy) {
  if (x.rows == 0) return;
  if (!are_short(x, norm, copy)) return Backend::norm_stream(x, norm, copy);
  with_float_type(copy.dtype, [&](auto zero) {
    norm_short<float, float, decltype(zero)>(x, norm, false, x, copy, queue());
  });
}

}  // namespace faststream
