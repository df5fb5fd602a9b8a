// Products of codes of floats on Hopper.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace faststream {

bool coded_product_fits(const Matrix& x, const Weight& weight, const ProductDestination& to,
                        bool gated) {
  constexpr int64_t kEights = 8;  // that gates and copies of results come in
  const int64_t outputs = gated ? weight.rows / 2 : weight.rows;
  const bool has_kernel = to.dtype == DType::bf16 ? !to.add : to.dtype == DType::f32 && !gated;
  const bool finishes = gated ? has_gate(to.activation) : to.activation == Activation::none;
  return x.dtype == DType::bf16 && has_kernel && finishes && outputs % kEights == 0 &&
         (weight.format != WeightFormat::fp8 || rounds_to_e4m3(weight)) && boxes_fit(x, weight, to);
}

void coded_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
                         bool gated, const Queue& queue) {
  launch_finished<Coded>(product_of(x, 0, x.rows, weight, to, gated), x.dtype, gated, queue,
                         CodedLayout(weight.format));
}

void e4m3_product_sm90a(DeviceBuffer& scratch, const Input& input, const Weight& weight,
                        const ProductDestination& to, bool gated, const Queue& queue) {
  in_pieces_of_eight_bits(scratch, input, weight.rotated, DType::u8, queue,
                          [&](const Matrix& codes, const float* row_scales, int64_t first) {
                            Product product =
                                product_of(codes, 0, codes.rows, weight, to.from_row(first), gated);
                            product.row_scales = row_scales;
                            launch_finished<__nv_fp8_e4m3>(product, DType::u8, gated, queue);
                          });
}

}  // namespace faststream
