#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                             const Matrix& out) {
  multiply_heads(x, weight, n_heads, false, out);
}

void CpuBackend::multiply_heads(const Matrix& x, const Weight& weight, int64_t n_heads,
                                bool in_floats, const Matrix& out) {
  const int64_t n = weight.rows / n_heads;
  const int64_t from = x.cols / n_heads;
  const int64_t copied = from - weight.cols;
  require(weight.rows % n_heads == 0 && x.cols % n_heads == 0 && copied >= 0,
          "head_linear: heads must have equal parts of x and of the weight");
  const int64_t to = copied + n;
  require_f32(x, x.rows, n_heads * from, "head_linear: x must be [rows, n_heads (p + in)] f32");
  require_f32(out, x.rows, n_heads * to, "head_linear: out must be [rows, n_heads (p + n)] f32");
  Weight unrounded = weight;
  unrounded.input_bits = 16;
  std::vector<Product> products;
  for (int64_t h = 0; h < n_heads; ++h) {
    products.push_back(linear_product(x.columns(h * from + copied, weight.cols),
                                      unrounded.row_range(h * n, n), {},
                                      out.columns(h * to + copied, n)));
    products.back().in_floats = in_floats;
  }
  multiply(std::move(products));
  if (copied == 0) return;
  pool_.parallel_for(x.rows, 8, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* row = static_cast<const float*>(x.data) + r * x.stride;
      float* copy = static_cast<float*>(out.data) + r * out.stride;
      for (int64_t h = 0; h < n_heads; ++h) std::copy_n(row + h * from, copied, copy + h * to);
    }
  });
}

}  // namespace faststream
