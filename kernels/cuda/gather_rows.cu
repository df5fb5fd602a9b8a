// The rows whose logits are wanted.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

__global__ void gather_rows_kernel(const int32_t* rows, const float* x, int64_t x_stride, int64_t n,
                                   float* out, int64_t out_stride) {
  begin_kernel();
  const float* from = x + rows[blockIdx.x] * x_stride;
  float* to = out + blockIdx.x * out_stride;
  for (int64_t c = threadIdx.x; c < n; c += kElementThreads) to[c] = from[c];
}

}  // namespace

void CudaBackend::gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) {
  if (batch.n_logits == 0) return;
  queue().launch("gathering rows", gather_rows_kernel, {batch.n_logits, kElementThreads},
                 batch.logit_rows, static_cast<const float*>(x.data), x.stride, x.cols,
                 static_cast<float*>(out.data), out.stride);
}

}  // namespace faststream
