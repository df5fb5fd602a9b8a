// Activations on vectors. Everything is local to the including file.
#pragma once

#include "backend/activation.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

inline Vec sigmoid(Vec x) { return 1.0F / (1.0F + exponential(-x)); }

/// The normal distribution's share below x, 1/2 (1 + erf(x / √2)), within 3e-7: by the formula
/// 7.1.26 of Abramowitz and Stegun's Handbook of Mathematical Functions for erfc(|x| / √2).
inline Vec normal_below(Vec x) {
  const Vec z = magnitude(x) * 0.707106781F;
  const Vec t = 1.0F / (z * 0.3275911F + 1.0F);
  Vec p = t * 1.061405429F - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const Vec beyond = 0.5F * p * t * exponential(-z * z);
  return select(x > Vec{}, 1.0F - beyond, beyond);
}

/// f(x) of all activations; of what is of gates alone, x.
template <Activation kActivation>
inline Vec activate(Vec x) {
  if constexpr (kActivation == Activation::silu) {
    return x * sigmoid(x);
  } else if constexpr (kActivation == Activation::gelu) {
    return x * normal_below(x);
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    // (1 + tanh(y)) / 2 = sigmoid(2 y); 2 √(2 / π) = 1.5957...
    return x * sigmoid(1.59576912F * x * (0.044715F * x * x + 1.0F));
  } else if constexpr (kActivation == Activation::relu) {
    return select(x < Vec{}, Vec{}, x);
  } else if constexpr (kActivation == Activation::relu_squared) {
    const Vec positive = select(x < Vec{}, Vec{}, x);
    return positive * positive;
  } else if constexpr (kActivation == Activation::tanh) {
    return hyperbolic_tangent(x);
  } else if constexpr (kActivation == Activation::sigmoid) {
    return sigmoid(x);
  } else if constexpr (kActivation == Activation::softplus) {
    return softplus(x);
  } else {
    static_assert(kActivation == Activation::none || is_of_gates(kActivation));
    return x;
  }
}

/// What a gate and an up projection's value become. limit: of what is of gates alone.
template <Activation kActivation>
inline Vec gate_value(Vec limit, Vec gate, Vec up) {
  if constexpr (is_of_gates(kActivation)) {
    const auto bounded = [limit](Vec x) { return select(x > limit, limit, x); };
    const Vec below = bounded(up);
    const Vec bounded_up = select(below < -limit, -limit, below);
    if constexpr (kActivation == Activation::silu_clamped) {
      return bounded(gate * sigmoid(gate)) * bounded_up;
    } else {
      const Vec bounded_gate = bounded(gate);
      return bounded_gate * sigmoid(1.702F * bounded_gate) * (bounded_up + 1.0F);
    }
  } else {
    return activate<kActivation>(gate) * up;
  }
}

/// Calls body.operator()<activation>().
template <class Body>
inline void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::none:
      return body.template operator()<Activation::none>();
    case Activation::silu:
      return body.template operator()<Activation::silu>();
    case Activation::gelu:
      return body.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return body.template operator()<Activation::gelu_tanh>();
    case Activation::relu:
      return body.template operator()<Activation::relu>();
    case Activation::relu_squared:
      return body.template operator()<Activation::relu_squared>();
    case Activation::tanh:
      return body.template operator()<Activation::tanh>();
    case Activation::sigmoid:
      return body.template operator()<Activation::sigmoid>();
    case Activation::softplus:
      return body.template operator()<Activation::softplus>();
    case Activation::swiglu_clamped:
      return body.template operator()<Activation::swiglu_clamped>();
    case Activation::silu_clamped:
      return body.template operator()<Activation::silu_clamped>();
  }
}

}  // namespace
}  // namespace faststream
