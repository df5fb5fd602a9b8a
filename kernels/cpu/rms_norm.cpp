#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::rms_norm(const Matrix& x, const float* weight, float eps, const Matrix& out) {
  require_f32(x, x.rows, x.cols, "rms_norm: x must be f32");
  require_f32(out, x.rows, x.cols, "rms_norm: out must have x's shape");
  pool_.parallel_for(x.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      kernels_.rms_norm(static_cast<const float*>(x.data) + r * x.stride, weight, eps, x.cols,
                        static_cast<float*>(out.data) + r * out.stride);
    }
  });
}

}  // namespace faststream
