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
  sigmoid,  ///< 1 / (1 + exp(-x))
  /// Of gates alone: g / (1 + exp(-1.702 g)) with g = min(gate, 7), times 1 + the up projection's
  /// value within -7 to 7 (gpt-oss).
  swiglu_clamped,
};

}  // namespace faststream
