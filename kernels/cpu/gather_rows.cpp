#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) {
  require_f32(x, batch.n_tokens, x.cols, "gather_rows: x must be [tokens, n] f32");
  require_f32(out, batch.n_logits, x.cols, "gather_rows: out must be [n_logits, n] f32");
  for (int32_t r = 0; r < batch.n_logits; ++r) {
    const float* from = static_cast<const float*>(x.data) + batch.logit_rows[r] * x.stride;
    std::copy_n(from, x.cols, static_cast<float*>(out.data) + r * out.stride);
  }
}

}  // namespace faststream
