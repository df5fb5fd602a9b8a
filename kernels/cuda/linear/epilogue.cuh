// The last step of every product.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// Of five instructions: the power and the reciprocal are approximate, within some units in the
/// last place of float32 for the x where it matters.
__device__ inline float silu(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0F + __expf(-x)));
  return x * reciprocal;
}

/// log(1 + e^x), of which beyond 20 nothing but x is left in float32.
__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/// Of products' activations; of others x itself: their code is not in all kernels of products.
__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::silu:
      return silu(x);
    case Activation::gelu:
      return 0.5F * x * (1.0F + erff(x * 0.707106781186547524F));
    case Activation::gelu_tanh:
      return 0.5F * x * (1.0F + tanhf(0.797884560802865356F * (x + 0.044715F * x * x * x)));
    case Activation::relu:
      return x < 0 ? 0 : x;  // NaN stays NaN
    case Activation::relu_squared:
      return x < 0 ? 0 : x * x;
    case Activation::tanh:
      return tanhf(x);
    case Activation::sigmoid:
      return 1.0F / (1.0F + expf(-x));
    case Activation::none:
    case Activation::softplus:
    case Activation::swiglu_clamped:
    case Activation::silu_clamped:
      break;
  }
  return x;
}

/// The same of several: the kind is looked at once, and code of others is not fetched.
template <int kCount>
__device__ inline void activate(Activation activation, float (&x)[kCount]) {
  const auto all = [&](auto kind) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = activate(decltype(kind)::value, x[i]);
  };
  switch (activation) {
    case Activation::silu:
      return all(std::integral_constant<Activation, Activation::silu>{});
    case Activation::gelu:
      return all(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_tanh:
      return all(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::relu:
      return all(std::integral_constant<Activation, Activation::relu>{});
    case Activation::relu_squared:
      return all(std::integral_constant<Activation, Activation::relu_squared>{});
    case Activation::tanh:
      return all(std::integral_constant<Activation, Activation::tanh>{});
    case Activation::sigmoid:
      return all(std::integral_constant<Activation, Activation::sigmoid>{});
    case Activation::none:
    case Activation::softplus:
    case Activation::swiglu_clamped:
    case Activation::silu_clamped:
      return;
  }
}

/// Of all that are of one element.
__device__ inline float activate_any(Activation activation, float x) {
  return activation == Activation::softplus ? softplus(x) : activate(activation, x);
}

/// What a gate and an up projection's value become. limit: of what is of gates alone.
__device__ inline float gate_value(Activation activation, float limit, float gate, float up) {
  if (!is_of_gates(activation)) return activate(activation, gate) * up;
  const auto bounded = [limit](float x) { return x > limit ? limit : x; };  // NaN stays NaN
  const float bounded_up = up < -limit ? -limit : bounded(up);
  if (activation == Activation::silu_clamped) return bounded(silu(gate)) * bounded_up;
  const float bounded_gate = bounded(gate);
  return bounded_gate / (1.0F + expf(-1.702F * bounded_gate)) * (1.0F + bounded_up);
}

// What is rounded is said, so that all kernels' results have the same bits.

/// A sum of integers by the scales of its row of x and of its row of the weight.
__device__ inline float scaled(float sum, float row_scale, float weight_scale) {
  return __fmul_rn(__fmul_rn(sum, row_scale), weight_scale);
}

/// Plus the bias of weight row `channel`.
__device__ inline float add_bias(const Destination& to, int64_t channel, float value) {
  return to.bias != nullptr ? __fadd_rn(value, to.bias[channel]) : value;
}

__device__ inline void finish_product(const Destination& to, int64_t row, int64_t column,
                                      float value) {
  const int64_t index = row * to.stride + column;
  value = add_bias(to, column, value);
  if (to.add) value = __fadd_rn(value, load_element(to.out, to.dtype, index));
  value = activate(to.activation, value);
  store_element(to.out, to.dtype, index, value);
}

/// The same of a gate and its up projection's value, with biases added.
__device__ inline void finish_gate(const Destination& to, int64_t row, int64_t column, float gate,
                                   float up) {
  store_element(to.out, to.dtype, row * to.stride + column,
                gate_value(to.activation, to.gate_limit, gate, up));
}

}  // namespace faststream
