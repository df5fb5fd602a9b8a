#include "kernels/cpu/cpu_backend.h"

namespace faststream {

Kernels::Normalize CpuBackend::normalizer(NormKind kind) const {
  switch (kind) {
    case NormKind::none:
      return kernels_.no_norm;
    case NormKind::rms:
      return kernels_.rms_norm;
    case NormKind::layer:
      return kernels_.layer_norm;
  }
  throw std::logic_error("norm: unknown kind");
}

void CpuBackend::norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) {
  const Matrix rows = x.stride == 0 ? Matrix(x.data, x.dtype, 1, x.cols) : x;  // one, repeated
  require_f32(rows, rows.rows, x.cols, "norm: x must be f32");
  require_f32(out, x.rows, x.cols, "norm: out must have x's shape");
  const Kernels::Normalize normalize = normalizer(norm.kind);
  NormTask task;
  if (norm.kind != NormKind::none) task.weight = norm.weight;
  if (norm.kind == NormKind::layer) task.bias = norm.bias;
  task.eps = norm.eps;
  task.n = x.cols;
  task.add = output == OutputMode::add;
  pool_.parallel_for(x.rows, 4, [&](int64_t first, int64_t last) {
    NormTask row = task;
    for (int64_t r = first; r < last; ++r) {
      row.x = static_cast<const float*>(x.data) + r * x.stride;
      row.out = static_cast<float*>(out.data) + r * out.stride;
      normalize(row);
    }
  });
}

void CpuBackend::sum_squares(const Matrix& x, const Matrix& sums) {
  require_f32(x, x.rows, x.cols, "norm_over_ranks: x must be f32");
  pool_.parallel_for(x.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* row = static_cast<const float*>(x.data) + r * x.stride;
      static_cast<float*>(sums.data)[r * sums.stride] = kernels_.sum_squares(row, x.cols);
    }
  });
}

void CpuBackend::norm_by_squares(const Matrix& x, const Norm& norm, const Matrix& sums, int64_t n) {
  NormTask task{.weight = norm.weight, .eps = norm.eps, .n = x.cols};
  pool_.parallel_for(x.rows, 4, [&](int64_t first, int64_t last) {
    NormTask row = task;
    for (int64_t r = first; r < last; ++r) {
      row.out = static_cast<float*>(x.data) + r * x.stride;
      row.x = row.out;
      row.mean_square =
          static_cast<const float*>(sums.data)[r * sums.stride] / static_cast<float>(n);
      kernels_.norm_by_square(row);
    }
  });
}

}  // namespace faststream
