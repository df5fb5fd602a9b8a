// Gated products of 16-bit rows and weights on Hopper.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"

namespace faststream {

namespace {

template <typename Element>
void launch_rows(const Product& product, DType type, const Queue& queue) {
  if (product.rows <= 64) {
    launch<Kind<Element, Element, true, 64>>(product, type, 1, queue);
  } else if (product.rows <= 128) {
    launch<Kind<Element, Element, true, 128>>(product, type, 1, queue);
  } else {
    launch<Kind<Element, Element, true, 256>>(product, type, 1, queue);
  }
}

}  // namespace

bool gated_product_sm90a(const Matrix& x, const Weight& weight, const Destination& to,
                         const Queue& queue) {
  const bool is_16_bit = x.dtype == DType::bf16 || x.dtype == DType::f16;
  const bool same_types = weight.dtype == x.dtype && to.dtype == x.dtype;
  if (!is_16_bit || !same_types || !can_multiply(x, weight, to, true)) return false;
  const Product product = product_of(x, 0, x.rows, weight, to, true);
  if (x.dtype == DType::f16) {
    launch_rows<__half>(product, x.dtype, queue);
  } else {
    launch_rows<__nv_bfloat16>(product, x.dtype, queue);
  }
  return true;
}

}  // namespace faststream
