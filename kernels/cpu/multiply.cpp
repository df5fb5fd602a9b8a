#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::multiply(const Matrix& factors, const Matrix& m) {
  const bool is_one = factors.rows == 1 && factors.cols == 1;
  require_f32(m, m.rows, m.cols, "multiply: m must be f32");
  require_f32(factors, is_one ? 1 : m.rows, is_one ? 1 : m.cols,
              "multiply: factors must have m's shape, or be one, and f32");
  const auto* from = static_cast<const float*>(factors.data);
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* row = static_cast<float*>(m.data) + r * m.stride;
      if (is_one) {
        for (int64_t i = 0; i < m.cols; ++i) row[i] *= *from;
      } else {
        for (int64_t i = 0; i < m.cols; ++i) row[i] *= from[r * factors.stride + i];
      }
    }
  });
}

}  // namespace faststream
