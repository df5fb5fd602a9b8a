// One row of the rows of each sequence. Bytes: each row that counts is read once; a thread has a
// column, so that a warp reads 128 bytes of a row at once.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kPoolThreads = 128;

__device__ float pool_column(const float* column, int64_t stride, int count, Pooling pooling) {
  if (pooling == Pooling::first) return column[0];
  if (pooling == Pooling::last) return column[(count - 1) * stride];
  float result = 0;
  if (pooling == Pooling::largest) {
    result = column[0];
    for (int i = 1; i < count; ++i) result = fmaxf(result, column[i * stride]);
    return result;
  }
  const bool weighted = pooling == Pooling::weighted_mean;
  for (int i = 0; i < count; ++i) {
    result += (weighted ? static_cast<float>(i + 1) : 1.0F) * column[i * stride];
  }
  const auto size = static_cast<float>(count);
  if (weighted) return result * (2.0F / (size * (size + 1)));
  return result * (pooling == Pooling::mean ? 1.0F / size : rsqrtf(size));
}

__global__ void pool_kernel(const int32_t* query_start, const float* x, int64_t x_stride, int64_t n,
                            Pooling pooling, float* out, int64_t out_stride) {
  begin_kernel();
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kPoolThreads + threadIdx.x;
  if (column >= n) return;
  const int64_t begin = query_start[blockIdx.x];
  const auto count = static_cast<int>(query_start[blockIdx.x + 1] - begin);
  out[blockIdx.x * out_stride + column] =
      pool_column(x + begin * x_stride + column, x_stride, count, pooling);
}

}  // namespace

void CudaBackend::pool(const BatchView& batch, const Matrix& x, Pooling pooling,
                       const Matrix& out) {
  if (batch.n_sequences == 0) return;
  const dim3 grid(batch.n_sequences, ceil_div(x.cols, kPoolThreads));
  queue().launch("pooling rows", pool_kernel, {grid, kPoolThreads}, batch.query_start,
                 static_cast<const float*>(x.data), x.stride, x.cols, pooling,
                 static_cast<float*>(out.data), out.stride);
}

}  // namespace faststream
