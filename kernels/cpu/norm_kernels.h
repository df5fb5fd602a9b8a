// Normalization of rows, rotation of heads, and the soft cap. Everything is local to the including
// file.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

/// v with zeros beyond `count`.
inline Vec first_lanes(Vec v, int64_t count) {
  if (count == kLanes) return v;
  float lanes[kLanes];
  store(lanes, v);
  return widen_some(lanes, count);
}

/// The sum of f(x) over a row.
template <class Function>
inline float sum_of_row(const float* x, int64_t n, const Function& f) {
  Vec sums[2] = {};
  for_vectors(n, [&](int64_t c, int64_t count) {
    sums[(c / kLanes) % 2] += first_lanes(f(load_up_to(x + c, count)), count);
  });
  return sum_of_lanes(sums[0] + sums[1]);
}

/// out = or += (x - mean) · scale · weight + bias.
inline void write_normalized(const NormTask& task, float mean, float scale) {
  for_vectors(task.n, [&](int64_t c, int64_t count) {
    Vec v = (load_up_to(task.x + c, count) - mean) * scale;
    if (task.weight != nullptr) v *= load_up_to(task.weight + c, count);
    if (task.bias != nullptr) v += load_up_to(task.bias + c, count);
    if (task.add) v += load_up_to(task.out + c, count);
    store_up_to(task.out + c, v, count);
  });
}

void no_norm(const NormTask& task) { write_normalized(task, 0, 1); }

float sum_squares(const float* x, int64_t n) {
  return sum_of_row(x, n, [](Vec v) { return v * v; });
}

void norm_by_square(const NormTask& task) {
  write_normalized(task, 0, 1.0F / __builtin_sqrtf(task.mean_square + task.eps));
}

void rms_norm(const NormTask& task) {
  NormTask known = task;
  known.mean_square = sum_squares(task.x, task.n) / static_cast<float>(task.n);
  norm_by_square(known);
}

void layer_norm(const NormTask& task) {
  const auto n = static_cast<float>(task.n);
  const float mean = sum_of_row(task.x, task.n, [](Vec v) { return v; }) / n;
  // The mean is taken off before squares are: they would cancel beside a large one.
  const float squares =
      sum_of_row(task.x, task.n, [mean](Vec v) { return (v - mean) * (v - mean); });
  write_normalized(task, mean, 1.0F / __builtin_sqrtf(squares / n + task.eps));
}

void rotate(float* x, const float* cosines, const float* sines, int64_t heads, int64_t head_dim,
            int64_t rotated) {
  const int64_t half = rotated / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    for_vectors(half, [&](int64_t i, int64_t count) {
      const Vec first = load_up_to(x + i, count);
      const Vec second = load_up_to(x + half + i, count);
      const Vec cosine = load_up_to(cosines + i, count);
      const Vec sine = load_up_to(sines + i, count);
      store_up_to(x + i, first * cosine - second * sine, count);
      store_up_to(x + half + i, second * cosine + first * sine, count);
    });
  }
}

void xielu(float above, float below, float beta, int64_t n, float* x) {
  for_vectors(n, [&](int64_t c, int64_t count) {
    const Vec v = load_up_to(x + c, count);
    // exp(v) - 1 - v: near 0 by its series, where the difference has few digits.
    Vec series = v / 7.0F + 1.0F;
    for (const float k : {6.0F, 5.0F, 4.0F, 3.0F}) series = series * v / k + 1.0F;
    const Vec near = 0.5F * v * v * series;
    const Vec bent = select(v > splat(-0.25F), near, exponential(v) - 1.0F - v);
    store_up_to(x + c, select(v > Vec{}, above * v * v, below * bent) + beta * v, count);
  });
}

void soft_cap(float cap, int64_t n, float* x) {
  for_vectors(n, [&](int64_t c, int64_t count) {
    store_up_to(x + c, cap * hyperbolic_tangent(load_up_to(x + c, count) / cap), count);
  });
}

}  // namespace
}  // namespace faststream
