#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::activate(Activation activation, const Matrix& m) {
  require_f32(m, m.rows, m.cols, "activate: m must be f32");
  require(!is_of_gates(activation), "activate: the activation is of gates");
  pool_.parallel_for(m.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      kernels_.activate(activation, m.cols, static_cast<float*>(m.data) + r * m.stride);
    }
  });
}

}  // namespace faststream
