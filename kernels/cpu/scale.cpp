#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::scale(const Matrix& factors, Activation activation, const Matrix& m) {
  const int64_t stride = factors.rows == 1 ? 0 : factors.stride;
  const int64_t each = m.cols / std::max<int64_t>(factors.cols, 1);  // columns that one serves
  require_f32(m, m.rows, each * factors.cols, "scale: m must be [rows, n] f32");
  require_f32(factors, factors.rows == 1 ? 1 : m.rows, factors.cols,
              "scale: factors must be [rows or 1, a divisor of n] f32");
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* of_row = static_cast<const float*>(factors.data) + r * stride;
      float* row = static_cast<float*>(m.data) + r * m.stride;
      if (each == 1) {
        kernels_.scale(of_row, activation, m.cols, row);
        continue;
      }
      for (int64_t c = 0; c < m.cols; c += each) {
        float factor = 1;
        kernels_.scale(of_row++, activation, 1, &factor);
        for (int64_t i = 0; i < each; ++i) row[c + i] *= factor;
      }
    }
  });
}

}  // namespace faststream
