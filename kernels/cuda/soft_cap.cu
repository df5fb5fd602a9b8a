// Logits bent to a largest magnitude.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

__global__ void soft_cap_kernel(float cap, float* logits, int64_t stride, int64_t n) {
  begin_kernel();
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= n) return;
  float& logit = logits[blockIdx.x * stride + c];
  logit = cap * tanhf(logit / cap);
}

}  // namespace

void CudaBackend::soft_cap(float cap, const Matrix& logits) {
  if (logits.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(logits.rows), ceil_div(logits.cols, kElementThreads));
  queue().launch("capping logits", soft_cap_kernel, {grid, kElementThreads}, cap,
                 static_cast<float*>(logits.data), logits.stride, logits.cols);
}

}  // namespace faststream
