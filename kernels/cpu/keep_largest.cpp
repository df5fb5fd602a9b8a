#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::keep_largest(float deviations, const Matrix& m) {
  require_f32(m, m.rows, m.cols, "keep_largest: m must be f32");
  const auto n = static_cast<double>(m.cols);
  pool_.parallel_for(m.rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* x = static_cast<float*>(m.data) + r * m.stride;
      double sum = 0;
      for (int64_t i = 0; i < m.cols; ++i) sum += x[i];
      const double mean = sum / n;
      double squares = 0;
      for (int64_t i = 0; i < m.cols; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const auto cutoff = static_cast<float>(mean + deviations * std::sqrt(squares / n));
      for (int64_t i = 0; i < m.cols; ++i) x[i] = std::max(x[i] - cutoff, 0.0F);
    }
  });
}

}  // namespace faststream
