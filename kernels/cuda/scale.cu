// Rows times functions of others, element by element.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;

__global__ void scale_kernel(Matrix factors, Activation activation, Matrix m) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t step = factors.cols == 1 ? 0 : 1;
  for (int64_t c = threadIdx.x; c < m.cols; c += kThreads) {
    const float factor = activate(
        activation, load_element(factors.data, factors.dtype, row * factors.stride + c * step));
    const int64_t index = row * m.stride + c;
    store_element(m.data, m.dtype, index, load_element(m.data, m.dtype, index) * factor);
  }
}

}  // namespace

void CudaBackend::scale(const Matrix& factors, Activation activation, const Matrix& m) {
  if (m.rows == 0) return;
  queue().launch("scaling rows", scale_kernel, {static_cast<unsigned>(m.rows), kThreads}, factors,
                 activation, m);
}

}  // namespace faststream
