// Normal numbers for tests.
#pragma once

#include <algorithm>
#include <cmath>

namespace faststream {

/// The numbers of std::normal_distribution<float> of mean 0. libstdc++'s takes two logarithms of
/// long doubles for each uniform number, which only GCC computes beforehand, and only if it
/// optimizes.
class Normal {
 public:
  explicit Normal(float deviation = 1) : deviation_(deviation) {}

  template <typename Engine>
  float operator()(Engine& random) {
    has_next_ = !has_next_;
    if (!has_next_) return next_ * deviation_;
    float x = 0;
    float y = 0;
    float square = 0;
    do {
      x = 2 * uniform(random) - 1;
      y = 2 * uniform(random) - 1;
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const float factor = std::sqrt(-2 * std::log(square) / square);
    next_ = x * factor;
    return y * factor * deviation_;
  }

 private:
  // In [0, 1).
  template <typename Engine>
  static float uniform(Engine& random) {
    constexpr auto kNumbers = static_cast<float>(Engine::max() - Engine::min() + 1.0);
    return std::min(static_cast<float>(random() - Engine::min()) / kNumbers, 1 - 0x1p-24F);
  }

  float deviation_;
  float next_ = 0;
  bool has_next_ = false;
};

}  // namespace faststream
