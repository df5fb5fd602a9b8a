#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// The sum of rows of n numbers, each times its weight, times `scale`.
template <typename WeightOf>
void weighted_sum(const float* rows, int64_t stride, int32_t count, int64_t n, float scale,
                  WeightOf weight_of, float* out) {
  std::fill_n(out, n, 0.0F);
  for (int32_t i = 0; i < count; ++i, rows += stride) {
    const float weight = weight_of(i);
    for (int64_t c = 0; c < n; ++c) out[c] += weight * rows[c];
  }
  for (int64_t c = 0; c < n; ++c) out[c] *= scale;
}

void pool_rows(const float* rows, int64_t stride, int32_t count, int64_t n, Pooling pooling,
               float* out) {
  const auto size = static_cast<float>(count);
  const auto equal = [](int32_t) { return 1.0F; };
  switch (pooling) {
    case Pooling::first:
      std::copy_n(rows, n, out);
      return;
    case Pooling::last:
      std::copy_n(rows + (count - 1) * stride, n, out);
      return;
    case Pooling::largest:
      std::copy_n(rows, n, out);
      for (int32_t i = 1; i < count; ++i) {
        for (int64_t c = 0; c < n; ++c) out[c] = std::max(out[c], rows[i * stride + c]);
      }
      return;
    case Pooling::mean:
      weighted_sum(rows, stride, count, n, 1.0F / size, equal, out);
      return;
    case Pooling::mean_by_root:
      weighted_sum(rows, stride, count, n, 1.0F / std::sqrt(size), equal, out);
      return;
    case Pooling::weighted_mean:
      weighted_sum(
          rows, stride, count, n, 2.0F / (size * (size + 1)),
          [](int32_t i) { return static_cast<float>(i + 1); }, out);
      return;
  }
}

}  // namespace

void CpuBackend::pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) {
  require_f32(x, batch.n_tokens, x.cols, "pool: x must be [tokens, n] f32");
  require_f32(out, batch.n_sequences, x.cols, "pool: out must be [n_sequences, n] f32");
  pool_.parallel_for(batch.n_sequences, 1, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const int32_t begin = batch.query_start[s];
      pool_rows(static_cast<const float*>(x.data) + begin * x.stride, x.stride,
                batch.query_start[s + 1] - begin, x.cols, pooling,
                static_cast<float*>(out.data) + s * out.stride);
    }
  });
}

}  // namespace faststream
