// The gated feed-forward: fused into the product where the product is ours or int8, else the gate
// is applied to gate and up products in memory.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"

namespace faststream {

namespace {

constexpr int64_t kMaxRows = 1024;  // of products in memory at a time

}  // namespace

void CudaBackend::gated_linear(const Matrix& x, const Weight& gate_up, Activation /*silu*/,
                               const Matrix& out) {
  if (x.rows == 0) return;
  const Queue queue = this->queue();
  const Epilogue epilogue{out.data, out.dtype, out.stride, gate_up.scales};
  if (few_rows_best(x, gate_up)) {
    few_rows_product(x, gate_up, epilogue, true, scratch_, queue);
    return;
  }
  if (x.dtype != DType::f32 && int8_fits(gate_up) &&
      int8_product(matmul_, scratch_, x, gate_up, epilogue, true, queue)) {
    return;
  }
  for (int64_t first = 0; first < x.rows; first += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, x.rows - first);
    std::byte* memory =
        products_.at_least(static_cast<size_t>(rows * gate_up.rows) * dtype_size(x.dtype));
    const Matrix products(memory, x.dtype, rows, gate_up.rows);
    linear(x.row_range(first, rows), gate_up, nullptr, LinearOutput::store, products);
    silu_multiply(products, out.row_range(first, rows), queue);
  }
}

}  // namespace faststream
