// Products of 16-bit rows and weights on Hopper: of many rows, and where there is more to do than
// to multiply: gates, biases and activations.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"

namespace faststream {

namespace {

bool are_16_bit(const Matrix& x, const Weight& weight) {
  return (x.dtype == DType::bf16 || x.dtype == DType::f16) && weight.dtype == x.dtype;
}

template <typename Element, typename Out, Finish kLast>
void launch_rows(const Product& product, DType type, int tile_rows, const Queue& queue) {
  switch (tile_rows) {
    case 64:
      return launch<Kind<Element, Out, kLast, 64>>(product, type, 1, queue);
    case 128:
      return launch<Kind<Element, Out, kLast, 128>>(product, type, 1, queue);
    default:
      return launch<Kind<Element, Out, kLast, 256>>(product, type, 1, queue);
  }
}

template <typename Element>
void launch_finished(const Product& product, DType type, const Queue& queue) {
  const int rows = choose_tiling(product, sizeof(Element), false).rows;
  if (product.to.dtype == DType::f32) {
    launch_rows<Element, float, Finish::none>(product, type, rows, queue);
  } else if (product.to.activation == Activation::none) {
    launch_rows<Element, Element, Finish::none>(product, type, rows, queue);
  } else {
    launch_rows<Element, Element, Finish::activation>(product, type, rows, queue);
  }
}

bool has_kernel(const Destination& to, DType type) {
  switch (to.activation) {
    case Activation::none:
      return to.dtype == DType::f32 || (to.dtype == type && !to.add);
    case Activation::silu:
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::relu:
      return to.dtype == type && !to.add;
    case Activation::relu_squared:
    case Activation::tanh:
    case Activation::swiglu_clamped:
      return false;
  }
  return false;
}

}  // namespace

bool gated_product_sm90a(const Matrix& x, const Weight& weight, const Destination& to,
                         const Queue& queue) {
  const bool finishes = to.activation == Activation::silu && to.dtype == x.dtype;
  if (!are_16_bit(x, weight) || !finishes || weight.rows % 16 != 0 || !boxes_fit(x, weight, to)) {
    return false;
  }
  const Product product = product_of(x, 0, x.rows, weight, to, true);
  const int rows = product.rows <= 64 ? 64 : product.rows <= 128 ? 128 : 256;
  if (x.dtype == DType::f16) {
    launch_rows<__half, __half, Finish::gate>(product, x.dtype, rows, queue);
  } else {
    launch_rows<__nv_bfloat16, __nv_bfloat16, Finish::gate>(product, x.dtype, rows, queue);
  }
  return true;
}

bool finished_product_sm90a(const Matrix& x, const Weight& weight, const Destination& to,
                            const Queue& queue) {
  // Copies of boxes write whole pieces of 16 bytes.
  const bool whole = weight.rows * dtype_size(to.dtype) % 16 == 0;
  if (!are_16_bit(x, weight) || !has_kernel(to, x.dtype) || !whole || !boxes_fit(x, weight, to)) {
    return false;
  }
  const Product product = product_of(x, 0, x.rows, weight, to, false);
  if (x.dtype == DType::f16) {
    launch_finished<__half>(product, x.dtype, queue);
  } else {
    launch_finished<__nv_bfloat16>(product, x.dtype, queue);
  }
  return true;
}

}  // namespace faststream
