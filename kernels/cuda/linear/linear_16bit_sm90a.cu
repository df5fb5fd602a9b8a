// Products of 16-bit rows and weights on Hopper: of many rows, and where there is more to do than
// to multiply: gates, biases and activations.
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/product_sm90a.cuh"

namespace faststream {

namespace {

bool are_16_bit(const Matrix& x, const Weight& weight) {
  return (x.dtype == DType::bf16 || x.dtype == DType::f16) && weight.stored_as() == x.dtype;
}

template <typename Element>
void launch_finished(const Product& product, DType type, const Queue& queue) {
  if (product.to.dtype == DType::f32) {
    launch<Element, float, Finish::none>(product, type, queue);
  } else if (product.to.activation == Activation::none) {
    launch<Element, Element, Finish::none>(product, type, queue);
  } else {
    launch<Element, Element, Finish::activation>(product, type, queue);
  }
}

bool has_kernel(const ProductDestination& to, DType type) {
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
    case Activation::sigmoid:
    case Activation::softplus:
    case Activation::swiglu_clamped:
    case Activation::silu_clamped:
      return false;
  }
  return false;
}

}  // namespace

bool gated_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
                         const Queue& queue) {
  const bool finishes = to.activation == Activation::silu && to.dtype == x.dtype;
  if (!are_16_bit(x, weight) || !finishes || weight.rows % 16 != 0 || !boxes_fit(x, weight, to)) {
    return false;
  }
  const Product product = product_of(x, 0, x.rows, weight, to, true);
  if (x.dtype == DType::f16) {
    launch<__half, __half, Finish::gate>(product, x.dtype, queue);
  } else {
    launch<__nv_bfloat16, __nv_bfloat16, Finish::gate>(product, x.dtype, queue);
  }
  return true;
}

bool finished_product_sm90a(const Matrix& x, const Weight& weight, const ProductDestination& to,
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
