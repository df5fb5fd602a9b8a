#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::xielu(const float* numbers, const Matrix& m) {
  require_f32(m, m.rows, m.cols, "xielu: m must be f32");
  const auto softplus = [](float x) { return std::log1p(std::exp(x)); };
  const float above = softplus(numbers[0]);
  const float beta = numbers[2];
  const float below = softplus(numbers[1]) + beta;
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (m.cols + kPiece - 1) / kPiece;  // of a row
  pool_.parallel_for(m.rows * pieces, 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t column = i % pieces * kPiece;
      float* x = static_cast<float*>(m.data) + i / pieces * m.stride + column;
      kernels_.xielu(above, below, beta, std::min(kPiece, m.cols - column), x);
    }
  });
}

}  // namespace faststream
