#include "kernels/cpu/cpu_backend.h"

namespace faststream {

CpuBackend::Product CpuBackend::gated_product(const Matrix& x, const Weight& gate_up,
                                              const float* bias, const Gate& gate,
                                              const Matrix& out) const {
  require(gate_up.rows % 2 == 0, "gated_linear: the weight must hold as many gates as ups");
  require_f32(x, x.rows, gate_up.cols, "gated_linear: x must be [rows, in] f32");
  require_f32(out, x.rows, gate_up.rows / 2, "gated_linear: out must be [rows, n] f32");
  Product product;
  product.x = x;
  product.weight = gate_up;
  product.halves = 2;
  product.finish = kernels_.finish_gated;
  product.result.scales = gate_up.row_scales();
  product.result.bias = bias;
  product.result.activation = gate.activation;
  product.result.gate_limit = gate.limit;
  product.result.up_distance = gate_up.rows / 2;
  product.result.out = static_cast<float*>(out.data);
  product.result.out_stride = out.stride;
  return product;
}

void CpuBackend::gated_linear(Input& input, const Weight& gate_up, const float* bias,
                              const Gate& gate, const Matrix& out) {
  multiply({gated_product(normalize(*this, input), gate_up, bias, gate, out)});
}

}  // namespace faststream
