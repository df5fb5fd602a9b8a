// The gated feed-forward: fused into the product where the product is ours or int8, else the gate
// is applied to gate and up products in memory.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"

namespace faststream {

ScratchPiece gated_piece(int64_t rows, int64_t width, DType type) {
  return piece_of(rows, static_cast<size_t>(width) * dtype_size(type), 16);
}

void CudaBackend::gated_linear(Input& input, const Weight& given, const float* bias,
                               const Gate& gate, const Matrix& out) {
  if (input.x.rows == 0) return;
  Destination to{.out = out.data,
                 .dtype = out.dtype,
                 .gate_limit = gate.limit,
                 .stride = out.stride,
                 .scales = given.row_scales(),
                 .bias = bias,
                 .activation = gate.activation};
  if (multiply_packed(input, given, to, true)) return;
  const Weight gate_up = widened(given, input.is_ready() ? input.x.dtype : input.normed.dtype);
  to.scales = gate_up.row_scales();
  if (step_kernel_.gated_linear(input, gate_up, to)) return;
  const Queue queue = this->queue();
  if (multiply_fused(input, gate_up, to, true, queue)) return;

  const Matrix x = normalize(*this, input);
  const ScratchPiece piece = gated_piece(x.rows, gate_up.rows, x.dtype);
  std::byte* memory = products_.at_least(piece.bytes);
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    const Matrix products(memory, x.dtype, rows, gate_up.rows);
    Input some{.x = x.row_range(first, rows)};
    linear(some, gate_up, {.bias = bias}, products);
    apply_gate(products, gate, out.row_range(first, rows), queue);
  }
}

}  // namespace faststream
