// Which kernel multiplies: by the number of rows, the types and the alignment.
//
//   rows <= 16, 16-bit x, same weights or i8   tensor cores, own kernel    weights read once
//   more rows, i8, sides multiples of 16       int8 x int8, cuBLASLt
//   more rows, other i8                        the first, 16 rows a time
//   rows > 8, x and weights of one type        cuBLASLt                    f32 in full float32
//   else                                       float arithmetic            any type and alignment
//
// The first three quantize x by row beside i8 weights and add integers; the first and the fourth
// sum 16-bit products in one order. So a row's result does not depend on the number of rows.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"

namespace faststream {

namespace {

constexpr int64_t kMaxFloatRows = 8;  // one pass of any_rows_product

}  // namespace

void CudaBackend::linear(const Matrix& x, const Weight& weight, const float* bias,
                         LinearOutput mode, const Matrix& out) {
  if (x.rows == 0) return;
  const Queue queue = this->queue();
  const Epilogue epilogue{out.data,      out.dtype, out.stride,
                          weight.scales, bias,      mode == LinearOutput::add};

  if (few_rows_best(x, weight)) {
    few_rows_product(x, weight, epilogue, false, scratch_, queue);
    return;
  }
  if (x.dtype != DType::f32 && int8_fits(weight) &&
      int8_product(matmul_, scratch_, x, weight, epilogue, false, queue)) {
    return;
  }
  if (x.rows > kMaxFloatRows && x.dtype == weight.dtype &&
      float_product(matmul_, scratch_, x, weight, epilogue, queue)) {
    return;
  }
  any_rows_product(x, weight, epilogue, queue);
}

}  // namespace faststream
