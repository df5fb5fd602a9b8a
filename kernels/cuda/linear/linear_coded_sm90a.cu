// Products of bf16 rows and codes of floats on Hopper.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"

namespace faststream {

bool coded_product_fits(const Matrix& x, const Weight& weight, const Destination& to, bool gated) {
  constexpr int64_t kEights = 8;  // that gates and copies of results come in
  const int64_t outputs = gated ? weight.rows / 2 : weight.rows;
  const bool has_kernel = to.dtype == DType::bf16 ? !to.add : to.dtype == DType::f32 && !gated;
  const bool finishes = gated ? has_gate(to.activation) : to.activation == Activation::none;
  return x.dtype == DType::bf16 && has_kernel && finishes && outputs % kEights == 0 &&
         boxes_fit(x, weight, to);
}

void coded_product_sm90a(const Matrix& x, const Weight& weight, const Destination& to, bool gated,
                         const Queue& queue) {
  using Half = __nv_bfloat16;
  const Product product = product_of(x, 0, x.rows, weight, to, gated);
  const CodedLayout layout(weight.format);
  if (gated) {
    launch<Coded, Half, Finish::gate>(product, x.dtype, queue, layout);
  } else if (to.dtype == DType::f32) {
    launch<Coded, float, Finish::none>(product, x.dtype, queue, layout);
  } else {
    launch<Coded, Half, Finish::none>(product, x.dtype, queue, layout);
  }
}

}  // namespace faststream
