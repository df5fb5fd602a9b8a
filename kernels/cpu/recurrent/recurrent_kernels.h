// Convolutions over the last tokens, and recurrences of matrices. Everything is local to the
// including file.
#pragma once

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/norm_kernels.h"

namespace faststream {
namespace {

void convolve(const ConvolveTask& task) {
  with_activation(task.activation, [&]<Activation kActivation>() {
    const int64_t tail = task.taps - 1;
    for (int64_t t = 0; t < task.tokens; ++t) {
      for_vectors(task.channels, [&](int64_t c, int64_t count) {
        Vec sum = task.bias != nullptr ? load_up_to(task.bias + c, count) : Vec{};
        for (int64_t i = 0; i <= tail; ++i) {
          const int64_t token = t - tail + i;
          const float* x = token < 0 ? task.before + (tail + token) * task.stride
                                     : task.x + token * task.x_stride;
          sum += load_up_to(task.weight + i * task.stride + c, count) * load_up_to(x + c, count);
        }
        store_up_to(task.out + t * task.out_stride + c, activate<kActivation>(sum), count);
      });
    }
  });
}

// Columns of a matrix that stay in the first-level cache while tokens pass: their sums fill some of
// the registers.
constexpr int kRecurVectors = 4;
constexpr int64_t kRecurColumns = int64_t{kRecurVectors} * kLanes;

/// 1 / |x|, or 1.
inline float unit_factor(const float* x, int64_t n, float unit_eps) {
  if (unit_eps <= 0) return 1;
  return 1.0F / __builtin_sqrtf(sum_of_row(x, n, [](Vec v) { return v * v; }) + unit_eps);
}

/// One token of V vectors of columns, of which the last has `last` elements.
template <int V, bool kByChannel>
inline void recur_token(const RecurTask& task, int64_t t, const float* from, int64_t last) {
  const auto count = [last](int v) { return v + 1 == V ? last : int64_t{kLanes}; };
  const float* q = task.q + t * task.q_stride;
  const float* k = task.k + t * task.k_stride;
  const float* value = task.v + t * task.v_stride;
  const float of_query = unit_factor(q, task.key_dim, task.unit_eps) * task.query_scale;
  const float of_key = unit_factor(k, task.key_dim, task.unit_eps);
  const float* decays = task.decays + t * (kByChannel ? task.key_dim : 1);
  const auto decay_of = [decays](int64_t i) { return decays[kByChannel ? i : 0]; };
  const float strength = task.strengths[t];

  Vec known[V] = {};
  if (task.delta) {
    for (int64_t i = 0; i < task.key_dim; ++i) {
      const float factor = kByChannel ? decay_of(i) * k[i] : k[i];
      for (int v = 0; v < V; ++v) {
        known[v] += factor * load_up_to(from + i * task.stride + v * kLanes, count(v));
      }
    }
  }
  const float of_known = kByChannel ? of_key : decay_of(0) * of_key;
  Vec values[V];
  Vec written[V];
  for (int v = 0; v < V; ++v) {
    values[v] = load_up_to(value + v * kLanes, count(v));
    written[v] = strength * (values[v] - of_known * known[v]) * of_key;
  }
  Vec sums[V] = {};
  for (int64_t i = 0; i < task.key_dim; ++i) {
    for (int v = 0; v < V; ++v) {
      const int64_t at = i * task.stride + v * kLanes;
      const Vec element = decay_of(i) * load_up_to(from + at, count(v)) + k[i] * written[v];
      sums[v] += q[i] * element;
      store_up_to(task.to + at, element, count(v));
    }
  }
  float* out = task.out + t * task.out_stride;
  for (int v = 0; v < V; ++v) {
    store_up_to(out + v * kLanes, of_query * sums[v] + task.skip * values[v], count(v));
  }
}

template <int V, bool kByChannel>
inline void recur_columns(const RecurTask& task) {
  if constexpr (V > 1) {
    if (task.columns <= (V - 1) * kLanes) return recur_columns<V - 1, kByChannel>(task);
  }
  const int64_t last = task.columns - (V - 1) * kLanes;
  for (int64_t t = 0; t < task.tokens; ++t) {
    const float* from = t == 0 ? task.from : task.to;
    if (last == kLanes) {
      recur_token<V, kByChannel>(task, t, from, kLanes);
    } else {
      recur_token<V, kByChannel>(task, t, from, last);
    }
    if (task.border == nullptr || t + 1 != task.border_tokens) continue;
    for (int64_t i = 0; i < task.key_dim; ++i) {
      for_vectors(task.columns, [&](int64_t c, int64_t count) {
        const int64_t at = i * task.stride + c;
        store_up_to(task.border + at, load_up_to(task.to + at, count), count);
      });
    }
  }
}

void recur(const RecurTask& task) {
  if (task.by_channel) {
    recur_columns<kRecurVectors, true>(task);
  } else {
    recur_columns<kRecurVectors, false>(task);
  }
}

void decays(const DecayTask& task) {
  for_vectors(task.n, [&](int64_t i, int64_t count) {
    const Vec gate = load_up_to(task.gates + i, count) + load_up_to(task.steps + i, count);
    Vec log_decay;
    if (task.least_log_decay < 0) {
      log_decay = task.least_log_decay / (1.0F + exponential(task.rate * gate));
    } else {
      const Vec least = splat(task.least_step);
      const Vec most = splat(task.most_step);
      const Vec step = softplus(gate);
      log_decay = task.rate * select(step < least, least, select(step > most, most, step));
    }
    store_up_to(task.out + i, exponential(log_decay), count);
  });
}

void scan(const ScanTask& task) {
  for (int64_t t = 0; t < task.tokens; ++t) {
    const float* from = t == 0 ? task.from : task.to;
    const float* b = task.b + t * task.b_stride;
    const float* c = task.c + t * task.c_stride;
    for_vectors(task.channels, [&](int64_t channel, int64_t count) {
      const auto load = [&](const float* values) { return load_up_to(values + channel, count); };
      const Vec x = load(task.x + t * task.x_stride);
      const Vec step = softplus(load(task.gates + t * task.gates_stride) + load(task.steps));
      const Vec taken = step * x;
      Vec sum = load(task.skips) * x;
      for (int64_t n = 0; n < task.state_size; ++n) {
        const int64_t at = n * task.stride;
        const Vec decay = exponential(load(task.rates + at) * step);
        const Vec element = decay * load(from + at) + b[n] * taken;
        sum += c[n] * element;
        store_up_to(task.to + at + channel, element, count);
      }
      store_up_to(task.out + t * task.out_stride + channel, sum, count);
    });
    if (task.border == nullptr || t + 1 != task.border_tokens) continue;
    for (int64_t n = 0; n < task.state_size; ++n) {
      for_vectors(task.channels, [&](int64_t channel, int64_t count) {
        const int64_t at = n * task.stride + channel;
        store_up_to(task.border + at, load_up_to(task.to + at, count), count);
      });
    }
  }
}

}  // namespace
}  // namespace faststream
