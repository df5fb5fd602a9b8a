#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::linear(const Matrix& x, const Weight& weight, const float* bias, LinearOutput mode,
                        const Matrix& out) {
  require_f32(x, x.rows, weight.cols, "linear: x must be [rows, in] f32");
  require_f32(out, x.rows, weight.rows, "linear: out must be [rows, out] f32");
  Product product;
  product.x = x;
  product.weight = weight;
  product.finish = kernels_.finish_linear;
  product.result.scales = weight.scales;
  product.result.bias = bias;
  product.result.add = mode == LinearOutput::add;
  product.result.out = static_cast<float*>(out.data);
  product.result.out_stride = out.stride;
  multiply(product);
}

}  // namespace faststream
