// What keeps several streams of a text together (arXiv:2301.13310): a few floats of work for each
// that memory gives, next to the layers' products.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

// A thread for the same element of all parts.
__global__ __launch_bounds__(kElementThreads) void combine_kernel(Matrix weights, int parts,
                                                                  Matrix m) {
  __shared__ float by[kMostParts * kMostParts];
  begin_kernel();
  const int64_t row = blockIdx.x;
  const auto* from = static_cast<const float*>(weights.data) + row * weights.stride;
  for (int i = static_cast<int>(threadIdx.x); i < parts * parts; i += kElementThreads)
    by[i] = from[i];
  __syncthreads();
  const int64_t n = m.cols / parts;
  const int64_t c = int64_t{blockIdx.y} * kElementThreads + threadIdx.x;
  if (c >= n) return;
  float* at = static_cast<float*>(m.data) + row * m.stride + c;
  float x[kMostParts];
#pragma unroll
  for (int r = 0; r < kMostParts; ++r) x[r] = r < parts ? at[r * n] : 0;
  for (int part = 0; part < parts; ++part) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kMostParts; ++r) {
      if (r < parts) sum = __fmaf_rn(by[part * parts + r], x[r], sum);
    }
    at[part * n] = sum;
  }
}

__device__ float mean_square(const Matrix& m, int64_t row, RowTeam<kRowLanes>& team) {
  const float squares[1] = {[&] {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < m.cols; c += kRowLanes) {
      const float value = load_element(m.data, m.dtype, row * m.stride + c);
      sum = __fmaf_rn(value, value, sum);
    }
    return sum;
  }()};
  return team.sum(squares) / static_cast<float>(m.cols);
}

// A block for a row.
__global__ __launch_bounds__(kRowLanes) void match_lengths_kernel(Matrix like, Matrix m) {
  __shared__ RowParts parts;
  begin_kernel();
  const int64_t row = blockIdx.x;
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  const float own = fmaxf(mean_square(m, row, team), static_cast<float>(kLeastMeanSquare));
  const float factor = sqrtf(mean_square(like, row, team) / own);
  for (int64_t c = threadIdx.x; c < m.cols; c += kRowLanes) {
    const int64_t index = row * m.stride + c;
    store_element(m.data, m.dtype, index, load_element(m.data, m.dtype, index) * factor);
  }
}

}  // namespace

void CudaBackend::combine(const Matrix& weights, int32_t parts, const Matrix& m) {
  if (m.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(m.rows), ceil_div(m.cols / parts, kElementThreads));
  queue().launch("combining streams", combine_kernel, {grid, kElementThreads}, weights, int{parts},
                 m);
}

void CudaBackend::match_lengths(const Matrix& like, const Matrix& m) {
  if (m.rows == 0) return;
  queue().launch("matching streams", match_lengths_kernel,
                 {static_cast<unsigned>(m.rows), kRowLanes}, like, m);
}

}  // namespace faststream
