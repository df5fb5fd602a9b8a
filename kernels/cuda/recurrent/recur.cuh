// How matrices change from token to token, as all kernels of recurrences compute it.
#pragma once

#include "kernels/cuda/recurrent/recur.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// One row of queries or keys to kWidth floats, scaled, zero beyond key_dim, by a warp.
template <int kWidth>
__device__ inline void prepare_row(const Matrix& m, int64_t row, int64_t first, const Recurrence& r,
                                   float scale, float* to) {
  constexpr int kTurns = (kWidth + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp;
  float values[kTurns];
  float squares = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kWarp + lane;
    values[turn] = i < r.key_dim ? load_element(m.data, m.dtype, row * m.stride + first + i) : 0.0F;
    squares += values[turn] * values[turn];
  }
  if (r.unit_eps > 0) scale *= rsqrtf(warp_sum(squares) + r.unit_eps);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kWarp + lane;
    if (i < kWidth) to[i] = values[turn] * scale;
  }
}

struct TokenGates {
  float log_decay = 0;
  float strength = 0;
};

/// How the head's matrix changes with the token of a row.
__device__ inline TokenGates gates_of(const RecurArguments& a, int64_t row, int head) {
  const Recurrence& r = a.recurrence;
  const float* gates = static_cast<const float*>(a.gates.data) + row * a.gates.stride;
  const float g = gates[head] + r.steps[head];
  constexpr float kLinearFrom = 20;  // where adding 1 to e^g changes nothing
  const float softplus = g > kLinearFrom ? g : log1pf(expf(g));
  const float step = fminf(fmaxf(softplus, r.least_step), r.most_step);
  return {r.rates[head] * step,
          r.delta ? r.strength / (1.0F + expf(-gates[r.n_heads + head])) : step};
}

}  // namespace faststream
