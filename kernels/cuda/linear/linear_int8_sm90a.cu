// Products of int8 rows and int8 or int4 weights on Hopper.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace faststream {

bool int8_product_sm90a(DeviceBuffer& scratch, const Input& input, const Weight& weight,
                        const ProductDestination& to, bool gated, const Queue& queue) {
  const Matrix& x = input.x;
  const bool has_kernel = to.dtype == DType::bf16 ? !to.add : to.dtype == DType::f32 && !gated;
  const ScratchPiece piece = eight_bits_piece(x.rows, x.cols);
  std::byte* memory = scratch.at_least(piece.bytes);
  const bool is_packed = weight.format == WeightFormat::int4;
  const bool finishes = !gated      ? to.activation == Activation::none
                        : is_packed ? has_gate(to.activation)
                                    : to.activation == Activation::silu;
  if (!has_kernel || !finishes || !boxes_fit({memory, DType::i8, piece.rows, x.cols}, weight, to)) {
    return false;
  }
  in_pieces_of_eight_bits(scratch, input, weight.rotated, DType::i8, queue,
                          [&](const Matrix& quantized, const float* row_scales, int64_t first) {
                            Product product = product_of(quantized, 0, quantized.rows, weight,
                                                         to.from_row(first), gated);
                            product.row_scales = row_scales;
                            if (is_packed) {
                              launch_finished<Int4>(product, DType::i8, gated, queue);
                            } else {
                              launch_finished<int8_t>(product, DType::i8, gated, queue);
                            }
                          });
  return true;
}

}  // namespace faststream
