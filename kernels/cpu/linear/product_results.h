// From a product's sums to its results: scales, bias, activation, residual. Everything is local to
// the including file.
#pragma once

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

/// Rows of a result are far apart, so the processor does not foresee the next ones.
inline void prefetch_row(const FinishTask& task, int64_t row) {
  if (row >= task.rows) return;
  const float* out = task.out + row * task.out_stride + task.first;
  for (int64_t c = 0; c < task.channels; c += 16) {
    __builtin_prefetch(out + c, 1);
  }
}

/// Sums as they are after scale and bias; `channel` is that of the scales and the bias.
inline Vec product_of(const FinishTask& task, const float* sums, int64_t channel, int64_t count) {
  Vec v = load_up_to(sums, count);
  if (task.scales != nullptr) v *= load_up_to(task.scales + channel, count);
  if (task.bias != nullptr) v += load_up_to(task.bias + channel, count);
  return v;
}

void finish_linear(const FinishTask& task) {
  with_activation(task.activation, [&task]<Activation kActivation>() {
    for (int64_t r = 0; r < task.rows; ++r) {
      const float* sums = task.sums + r * task.sums_stride;
      float* out = task.out + r * task.out_stride + task.first;
      prefetch_row(task, r + 4);
      for_vectors(task.channels, [&](int64_t c, int64_t count) {
        Vec v = activate<kActivation>(product_of(task, sums + c, task.first + c, count));
        if (task.add) v += load_up_to(out + c, count);
        store_up_to(out + c, v, count);
      });
    }
  });
}

void finish_gated(const FinishTask& task) {
  const Vec limit = splat(task.gate_limit);
  with_activation(task.activation, [&task, limit]<Activation kActivation>() {
    for (int64_t r = 0; r < task.rows; ++r) {
      const float* sums = task.sums + r * task.sums_stride;
      float* out = task.out + r * task.out_stride + task.first;
      prefetch_row(task, r + 4);
      for_vectors(task.channels, [&](int64_t c, int64_t count) {
        const int64_t channel = task.first + c;
        const Vec gate = product_of(task, sums + c, channel, count);
        const Vec up =
            product_of(task, sums + task.up_column + c, task.up_distance + channel, count);
        store_up_to(out + c, gate_value<kActivation>(limit, gate, up), count);
      });
    }
  });
}

}  // namespace
}  // namespace faststream
