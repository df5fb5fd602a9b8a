// What keeps several streams of a text together (arXiv:2301.13310).
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

template <typename Element>
Element* row_of(const Matrix& m, int64_t r) {
  return static_cast<Element*>(m.data) + r * m.stride;
}

double mean_square(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return sum / static_cast<double>(n);
}

}  // namespace

void CpuBackend::combine(const Matrix& weights, int32_t parts, const Matrix& m) {
  require(parts >= 1 && parts <= kMostParts && m.cols % parts == 0,
          "combine: rows must have parts of equal size, and not too many");
  require_f32(m, m.rows, m.cols, "combine: m must be f32");
  require_f32(weights, m.rows, int64_t{parts} * parts, "combine: weights must be [rows, p p] f32");
  const int64_t n = m.cols / parts;
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (n + kPiece - 1) / kPiece;  // of a part
  pool_.parallel_for(m.rows * pieces, 4, [&](int64_t first, int64_t last) {
    std::array<std::array<float, kPiece>, kMostParts> sums{};
    for (int64_t i = first; i < last; ++i) {
      const float* by = row_of<const float>(weights, i / pieces);
      const int64_t begin = i % pieces * kPiece;
      const int64_t count = std::min(kPiece, n - begin);
      float* x = row_of<float>(m, i / pieces) + begin;
      for (int32_t c = 0; c < parts; ++c) {
        float* sum = sums[static_cast<size_t>(c)].data();
        std::fill_n(sum, count, 0.0F);
        for (int32_t r = 0; r < parts; ++r, ++by) {
          for (int64_t j = 0; j < count; ++j) sum[j] += *by * x[r * n + j];
        }
      }
      for (int32_t c = 0; c < parts; ++c) {
        std::copy_n(sums[static_cast<size_t>(c)].data(), count, x + c * n);
      }
    }
  });
}

void CpuBackend::match_lengths(const Matrix& like, const Matrix& m) {
  require_f32(like, m.rows, m.cols, "match_lengths: like must be [rows, n] f32");
  require_f32(m, m.rows, m.cols, "match_lengths: m must be f32");
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* x = row_of<float>(m, r);
      const double own = std::max(mean_square(x, m.cols), kLeastMeanSquare);
      const double wanted = mean_square(row_of<const float>(like, r), m.cols);
      const auto factor = static_cast<float>(std::sqrt(wanted / own));
      for (int64_t i = 0; i < m.cols; ++i) x[i] *= factor;
    }
  });
}

}  // namespace faststream
