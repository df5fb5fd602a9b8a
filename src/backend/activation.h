// The functions between a feed-forward's products; apart from the operations, so that kernels know
// them too.
#pragma once

namespace faststream {

/// What an element goes through between the two products of a feed-forward, or as a factor.
enum class Activation {
  none,
  silu,          ///< x / (1 + exp(-x))
  gelu,          ///< x / 2 · (1 + erf(x / √2)), arXiv:1606.08415
  gelu_tanh,     ///< x / 2 · (1 + tanh(√(2 / π) (x + 0.044715 x³))), its approximation there
  relu,          ///< max(x, 0)
  relu_squared,  ///< max(x, 0)², arXiv:2109.08668
  tanh,
  sigmoid,   ///< 1 / (1 + exp(-x))
  softplus,  ///< log(1 + exp(x)), of factors, and by itself: no product's or convolution's
  // Of gates alone, see is_of_gates().
  swiglu_clamped,  ///< g / (1 + exp(-1.702 g)) with g = min(gate, limit), times 1 + u (gpt-oss)
  silu_clamped,    ///< min(gate / (1 + exp(-gate)), limit), times u (Step 3.5)
};

/// Whether it is no function of one element, but of a gate, and of u, the up projection's value
/// within -limit to limit.
constexpr bool is_of_gates(Activation activation) {
  return activation == Activation::swiglu_clamped || activation == Activation::silu_clamped;
}

/// Whether products and convolutions have it.
constexpr bool is_of_products(Activation activation) {
  return activation != Activation::softplus && !is_of_gates(activation);
}

/// Of gpt-oss.
inline constexpr float kUsualGateLimit = 7;

/// What a gate goes through: any activation, and the limit of one that is of gates alone.
struct Gate {
  Activation activation = Activation::none;
  float limit = kUsualGateLimit;

  constexpr Gate(Activation of_gate, float its_limit = kUsualGateLimit)
      : activation(of_gate), limit(its_limit) {}
};

}  // namespace faststream
