// Elements times factors. Bytes: m is read and written, and as many factors read, or one.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;

// stride: of factors; 0 where there is one for all.
__global__ void multiply_kernel(const float* factors, int64_t stride, Matrix m) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const bool is_one = stride == 0;
  for (int64_t c = threadIdx.x; c < m.cols; c += kThreads) {
    const int64_t index = row * m.stride + c;
    const float factor = is_one ? *factors : factors[row * stride + c];
    store_element(m.data, m.dtype, index, load_element(m.data, m.dtype, index) * factor);
  }
}

}  // namespace

void CudaBackend::multiply(const Matrix& factors, const Matrix& m) {
  if (m.rows == 0) return;
  const bool is_one = factors.rows == 1 && factors.cols == 1;
  queue().launch("multiplying", multiply_kernel, {static_cast<unsigned>(m.rows), kThreads},
                 static_cast<const float*>(factors.data), is_one ? 0 : factors.stride, m);
}

}  // namespace faststream
