// The gated feed-forward: fused into the product where the product is ours or int8, else the gate
// is applied to gate and up products in memory.
#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

void CudaBackend::gated_linear(const Matrix& x, const Weight& gate_up, Activation activation,
                               const Matrix& out) {
  if (activation != Activation::silu) throw std::logic_error("gated_linear: not SiLU");
  if (x.rows == 0) return;
  const Queue queue = this->queue();
  const Epilogue epilogue{out.data, out.dtype, out.stride, gate_up.scales};
  if (multiply_fused(x, gate_up, epilogue, true, queue)) return;

  const size_t row_bytes = static_cast<size_t>(gate_up.rows) * dtype_size(x.dtype);
  const int64_t piece = rows_of_piece(x.rows, row_bytes, 16);
  for (int64_t first = 0; first < x.rows; first += piece) {
    const int64_t rows = std::min(piece, x.rows - first);
    std::byte* memory = products_.at_least(static_cast<size_t>(rows) * row_bytes);
    const Matrix products(memory, x.dtype, rows, gate_up.rows);
    linear(x.row_range(first, rows), gate_up, nullptr, LinearOutput::store, products);
    silu_multiply(products, out.row_range(first, rows), queue);
  }
}

}  // namespace faststream
