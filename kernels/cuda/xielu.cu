// The activation with numbers that are learned.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

__device__ float softplus(float x) { return log1pf(expf(x)); }

__global__ void xielu_kernel(const float* numbers, Matrix m) {
  begin_kernel();
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= m.cols) return;
  const float beta = numbers[2];
  const int64_t index = blockIdx.x * m.stride + c;
  const float x = load_element(m.data, m.dtype, index);
  const float bent =
      x > 0 ? softplus(numbers[0]) * x * x : (softplus(numbers[1]) + beta) * (expm1f(x) - x);
  store_element(m.data, m.dtype, index, bent + beta * x);
}

}  // namespace

void CudaBackend::xielu(const float* numbers, const Matrix& m) {
  if (m.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(m.rows), ceil_div(m.cols, kElementThreads));
  queue().launch("applying xIELU", xielu_kernel, {grid, kElementThreads}, numbers, m);
}

}  // namespace faststream
