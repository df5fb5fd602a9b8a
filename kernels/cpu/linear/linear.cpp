#include "kernels/cpu/cpu_backend.h"

namespace faststream {

CpuBackend::Product CpuBackend::linear_product(const Matrix& x, const Weight& weight,
                                               const Epilogue& epilogue, const Matrix& out) const {
  require_f32(x, x.rows, weight.cols, "linear: x must be [rows, in] f32");
  require_f32(out, x.rows, weight.rows, "linear: out must be [rows, out] f32");
  require(is_of_products(epilogue.activation), "linear: the activation is no product's");
  require(epilogue.activation == Activation::none || epilogue.output != OutputMode::add,
          "linear: what is activated must be stored");
  Product product;
  product.x = x;
  product.weight = weight;
  product.in_order = epilogue.in_order;
  product.finish = kernels_.finish_linear;
  product.result.scales = weight.row_scales();
  product.result.bias = epilogue.bias;
  product.result.activation = epilogue.activation;
  product.result.add = epilogue.output == OutputMode::add;
  product.result.out = static_cast<float*>(out.data);
  product.result.out_stride = out.stride;
  return product;
}

void CpuBackend::linear(Input& input, const Weight& weight, const Epilogue& epilogue,
                        const Matrix& out) {
  multiply({linear_product(normalize(*this, input), weight, epilogue, out)});
}

}  // namespace faststream
