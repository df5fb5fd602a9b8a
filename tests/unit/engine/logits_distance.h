// How far logits are from others.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace faststream {

/// Largest difference over largest magnitude; infinite where the sizes differ or a number is none.
inline double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  double magnitude = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return INFINITY;
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    magnitude = std::max(magnitude, std::abs(double{b[i]}));
  }
  return difference / magnitude;
}

}  // namespace faststream
