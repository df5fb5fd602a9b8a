// Rows of the embedding table. Bytes: one table row read and one float row written for each token.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void embed_kernel(const int32_t* tokens, const T* table, int64_t hidden, float* out,
                             int64_t out_stride) {
  begin_kernel();
  const T* from = table + tokens[blockIdx.x] * hidden;
  float* to = out + blockIdx.x * out_stride;
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads) to[c] = to_float(from[c]);
}

}  // namespace

void CudaBackend::embed(const BatchView& batch, const Weight& table, const Matrix& out) {
  if (batch.n_tokens == 0) return;
  const Queue queue = this->queue();
  with_float_type(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    queue.launch("embedding tokens", embed_kernel<T>, {batch.n_tokens, kThreads}, batch.tokens,
                 static_cast<const T*>(table.data), table.cols, static_cast<float*>(out.data),
                 out.stride);
  });
}

}  // namespace faststream
