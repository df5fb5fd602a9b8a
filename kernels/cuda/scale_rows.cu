// Rows times the sigmoid of their gates.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;

__global__ void scale_rows_kernel(const float* gate, int64_t gate_stride, Matrix m) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const float factor = 1.0F / (1.0F + expf(-gate[row * gate_stride]));
  for (int64_t c = threadIdx.x; c < m.cols; c += kThreads) {
    const int64_t index = row * m.stride + c;
    store_element(m.data, m.dtype, index, load_element(m.data, m.dtype, index) * factor);
  }
}

}  // namespace

void CudaBackend::scale_rows(const Matrix& gate, const Matrix& m) {
  if (m.rows == 0) return;
  queue().launch("scaling rows", scale_rows_kernel, {static_cast<unsigned>(m.rows), kThreads},
                 static_cast<const float*>(gate.data), gate.stride, m);
}

}  // namespace faststream
