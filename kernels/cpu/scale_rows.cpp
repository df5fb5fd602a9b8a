#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::scale_rows(const Matrix& gate, const Matrix& m) {
  require_f32(m, m.rows, m.cols, "scale_rows: m must be f32");
  require_f32(gate, m.rows, 1, "scale_rows: gate must be [rows, 1] f32");
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float factor =
          1.0F / (1.0F + std::exp(-static_cast<const float*>(gate.data)[r * gate.stride]));
      float* row = static_cast<float*>(m.data) + r * m.stride;
      for (int64_t i = 0; i < m.cols; ++i) row[i] *= factor;
    }
  });
}

}  // namespace faststream
