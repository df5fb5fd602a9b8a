// The largest elements of a row, by its mean and its deviation, a block for each row.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

__global__ __launch_bounds__(kRowLanes) void keep_largest_kernel(float deviations, Matrix m) {
  __shared__ RowParts parts;
  begin_kernel();
  const int64_t first = blockIdx.x * m.stride;
  const auto n = static_cast<float>(m.cols);
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  const auto sum_of = [&](const auto& term) {
    float sum[1] = {};
    for (int64_t c = threadIdx.x; c < m.cols; c += kRowLanes) {
      sum[0] = __fadd_rn(sum[0], term(load_element(m.data, m.dtype, first + c)));
    }
    return team.sum(sum);
  };
  const float mean = sum_of([](float x) { return x; }) / n;
  const float squares = sum_of([mean](float x) { return __fmul_rn(x - mean, x - mean); });
  const float cutoff = __fmaf_rn(deviations, sqrtf(squares / n), mean);
  for (int64_t c = threadIdx.x; c < m.cols; c += kRowLanes) {
    const float x = load_element(m.data, m.dtype, first + c);
    const float above = x - cutoff;
    store_element(m.data, m.dtype, first + c, above < 0 ? 0 : above);  // what is NaN stays so
  }
}

}  // namespace

void CudaBackend::keep_largest(float deviations, const Matrix& m) {
  if (m.rows == 0) return;
  queue().launch("keeping the largest", keep_largest_kernel,
                 {static_cast<unsigned>(m.rows), kRowLanes}, deviations, m);
}

}  // namespace faststream
