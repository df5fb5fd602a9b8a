// Activations of what is no product's result as it is.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

__global__ void activate_kernel(Activation activation, Matrix m) {
  begin_kernel();
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= m.cols) return;
  const int64_t index = blockIdx.x * m.stride + c;
  store_element(m.data, m.dtype, index,
                activate_any(activation, load_element(m.data, m.dtype, index)));
}

}  // namespace

void CudaBackend::activate(Activation activation, const Matrix& m) {
  if (m.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(m.rows), ceil_div(m.cols, kElementThreads));
  queue().launch("activating", activate_kernel, {grid, kElementThreads}, activation, m);
}

}  // namespace faststream
