#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::scale(const Matrix& factors, Activation activation, const Matrix& m) {
  const bool by_row = factors.cols == 1;
  require_f32(m, m.rows, m.cols, "scale: m must be f32");
  require_f32(factors, m.rows, by_row ? 1 : m.cols, "scale: factors must be [rows, n or 1] f32");
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* of_row = static_cast<const float*>(factors.data) + r * factors.stride;
      float* row = static_cast<float*>(m.data) + r * m.stride;
      if (by_row) {
        float factor = 1;
        kernels_.scale(of_row, activation, 1, &factor);
        for (int64_t i = 0; i < m.cols; ++i) row[i] *= factor;
      } else {
        kernels_.scale(of_row, activation, m.cols, row);
      }
    }
  });
}

}  // namespace faststream
