// Products of int8 rows and int8 or int4 weights on Hopper.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace faststream {

namespace {

using Half = __nv_bfloat16;

constexpr int64_t kGrain = 256;  // rows of a piece: the largest tile's

template <typename Weights>
void launch_finished(const Product& product, bool gated, const Queue& queue) {
  if (gated) {
    launch<Weights, Half, Finish::gate>(product, DType::i8, queue);
  } else if (product.to.dtype == DType::f32) {
    launch<Weights, float, Finish::none>(product, DType::i8, queue);
  } else {
    launch<Weights, Half, Finish::none>(product, DType::i8, queue);
  }
}

}  // namespace

ScratchPiece int8_rows_piece(int64_t rows, int64_t inputs) {
  return piece_of(rows, static_cast<size_t>(inputs) + sizeof(float), kGrain);
}

bool int8_product_sm90a(DeviceBuffer& scratch, const Input& input, const Weight& weight,
                        const Destination& to, bool gated, const Queue& queue) {
  const Matrix& x = input.x;
  const bool has_kernel = to.dtype == DType::bf16 ? !to.add : to.dtype == DType::f32 && !gated;
  const ScratchPiece piece = int8_rows_piece(x.rows, x.cols);
  std::byte* memory = scratch.at_least(piece.bytes);
  const bool is_packed = weight.format == WeightFormat::int4;
  const bool finishes = !gated      ? to.activation == Activation::none
                        : is_packed ? has_gate(to.activation)
                                    : to.activation == Activation::silu;
  if (!has_kernel || !finishes || !boxes_fit({memory, DType::i8, piece.rows, x.cols}, weight, to)) {
    return false;
  }
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    const Matrix quantized(memory, DType::i8, rows, x.cols);
    auto* row_scales = reinterpret_cast<float*>(memory + (rows * x.cols + 255) / 256 * 256);
    quantize_rows(row_range(input, first, rows), weight.rotated, quantized, row_scales, queue);
    Product product = product_of(quantized, 0, rows, weight, to.from_row(first), gated);
    product.row_scales = row_scales;
    if (is_packed) {
      launch_finished<Int4>(product, gated, queue);
    } else {
      launch_finished<int8_t>(product, gated, queue);
    }
  }
  return true;
}

}  // namespace faststream
