// How matrices change from token to token, as all kernels of recurrences compute it.
#pragma once

#include "kernels/cuda/recurrent/recur.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// One row of queries or keys to kWidth floats, scaled, zero beyond key_dim, by a warp, whose lanes
/// have elements kWarp apart: element(turn), of those that exist, is element turn kWarp + lane.
template <int kWidth, typename Element>
__device__ inline void prepare_row(const Recurrence& r, float scale, const Element& element,
                                   float* to) {
  constexpr int kTurns = (kWidth + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp;
  float values[kTurns];
  float squares = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    values[turn] = turn * kWarp + lane < r.key_dim ? element(turn) : 0.0F;
    squares = __fmaf_rn(values[turn], values[turn], squares);
  }
  if (r.unit_eps > 0) scale *= rsqrtf(warp_sum(squares) + r.unit_eps);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kWarp + lane;
    if (i < kWidth) to[i] = values[turn] * scale;
  }
}

/// The step that a gate gives, with what is added to it.
__device__ inline float step_of(const Recurrence& r, float gate) {
  if (r.steps == nullptr) return 1;
  constexpr float kLinearFrom = 20;  // where adding 1 to e^g changes nothing
  const float softplus = gate > kLinearFrom ? gate : log1pf(expf(gate));
  return fminf(fmaxf(softplus, r.least_step), r.most_step);
}

/// The logarithm of the factor that it gives the head's matrix.
__device__ inline float log_decay_of(const Recurrence& r, int head, float gate) {
  if (r.least_log_decay < 0) return r.least_log_decay / (1.0F + expf(r.rates[head] * gate));
  return r.rates[head] * step_of(r, gate);
}

__device__ inline const float* gate_row(const RecurArguments& a, int64_t row) {
  return static_cast<const float*>(a.gates.data) + row * a.gates.stride;
}

/// How much of a value a token of gate b writes, if `delta`.
__device__ inline float strength_of(const Recurrence& r, float b) {
  return r.strength / (1.0F + expf(-b));
}

/// The same of the token of a row.
__device__ inline float strength_of(const RecurArguments& a, int64_t row, int head) {
  const Recurrence& r = a.recurrence;
  return strength_of(r, gate_row(a, row)[gate_columns(r) - r.n_heads + head]);
}

/// The same of a matrix' row, from element `first` on.
template <int kWidth>
__device__ inline void prepare_row(const Matrix& m, int64_t row, int64_t first, const Recurrence& r,
                                   float scale, float* to) {
  const int64_t of_lane = row * m.stride + first + threadIdx.x % kWarp;
  prepare_row<kWidth>(
      r, scale, [&](int turn) { return load_element(m.data, m.dtype, of_lane + turn * kWarp); },
      to);
}

struct TokenGates {
  float log_decay = 0;
  float strength = 0;
};

/// How the head's matrix changes with a token of gates g and, if `delta`, b, where all of it decays
/// alike.
__device__ inline TokenGates token_gates(const Recurrence& r, int head, float g, float b) {
  if (r.steps != nullptr) g += r.steps[head];
  return {log_decay_of(r, head, g), r.delta ? strength_of(r, b) : step_of(r, g)};
}

/// The same with the token of a row.
__device__ inline TokenGates gates_of(const RecurArguments& a, int64_t row, int head) {
  const Recurrence& r = a.recurrence;
  const float* gates = gate_row(a, row);
  const float g = r.steps != nullptr ? gates[head] : 0.0F;
  return token_gates(r, head, g, r.delta ? gates[gate_columns(r) - r.n_heads + head] : 0.0F);
}

/// By channel of keys: factors of the matrix' rows to kWidth floats, zero beyond key_dim, by a
/// warp.
template <int kWidth>
__device__ inline void prepare_decays(const RecurArguments& a, int64_t row, int head, float* to) {
  const Recurrence& r = a.recurrence;
  const float* gates = gate_row(a, row);
  for (int i = threadIdx.x % kWarp; i < kWidth; i += kWarp) {
    const int at = head * r.key_dim + i;
    to[i] = i < r.key_dim ? expf(log_decay_of(r, head, gates[at] + r.steps[at])) : 0.0F;
  }
}

}  // namespace faststream
