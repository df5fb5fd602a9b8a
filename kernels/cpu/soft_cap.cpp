#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::soft_cap(float cap, const Matrix& logits) {
  require_f32(logits, logits.rows, logits.cols, "soft_cap: logits must be f32");
  for (int64_t r = 0; r < logits.rows; ++r) {
    float* row = static_cast<float*>(logits.data) + r * logits.stride;
    pool_.parallel_for(logits.cols, 4096, [&](int64_t first, int64_t last) {
      kernels_.soft_cap(cap, last - first, row + first);
    });
  }
}

}  // namespace faststream
