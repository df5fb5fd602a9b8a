// Work is split by sequence, by head and by columns of its matrix, which do not need each other.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

float softplus(float x) {
  constexpr float kLinearFrom = 20;  // where adding 1 to e^x changes nothing
  return x > kLinearFrom ? x : std::log1p(std::exp(x));
}

// One of a token's gates, with what is added to it; 0 where there are none.
float gate_of(const Recurrence& r, const float* row, int64_t at) {
  return r.steps == nullptr ? 0 : row[at] + r.steps[at];
}

// What it gives.
float step_of(const Recurrence& r, float gate) {
  return r.steps == nullptr ? 1 : std::clamp(softplus(gate), r.least_step, r.most_step);
}

// The logarithm of the factor that it gives the head's matrix.
float log_decay(const Recurrence& r, int64_t head, float gate) {
  if (r.least_log_decay < 0) return r.least_log_decay / (1 + std::exp(r.rates[head] * gate));
  return r.rates[head] * step_of(r, gate);
}

}  // namespace

void CpuBackend::recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
                       const Matrix& gates, const Recurrence& r, const StateLayer& states,
                       const Matrix& out) {
  require_f32(q, batch.n_tokens, int64_t{r.n_key_heads} * r.key_dim, "recur: q has another shape");
  require_f32(k, batch.n_tokens, q.cols, "recur: k has another shape");
  require_f32(v, batch.n_tokens, int64_t{r.n_heads} * r.value_dim, "recur: v has another shape");
  require_f32(gates, batch.n_tokens, gate_columns(r), "recur: gates have another shape");
  require_f32(out, batch.n_tokens, v.cols, "recur: out has another shape");
  // Of each head factors of each token, one or one a channel of keys, and then strengths.
  const int64_t channels = r.by_channel ? r.key_dim : 1;
  const int64_t n_decays = gate_columns(r) - (r.delta ? r.n_heads : 0);
  const int64_t of_each = (channels + 1) * batch.n_tokens;
  auto* factors = shared_scratch_.get<float>(r.n_heads * of_each);
  pool_.parallel_for(r.n_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t h = first; h < last; ++h) {
      float* decays = factors + h * of_each;
      float* strengths = decays + channels * batch.n_tokens;
      for (int64_t t = 0; t < batch.n_tokens; ++t) {
        const float* row = static_cast<const float*>(gates.data) + t * gates.stride;
        if (r.by_channel) {
          DecayTask task;
          task.gates = row + h * channels;
          task.steps = r.steps + h * channels;
          task.rate = r.rates[h];
          task.least_log_decay = r.least_log_decay;
          task.least_step = r.least_step;
          task.most_step = r.most_step;
          task.n = channels;
          task.out = decays + t * channels;
          kernels_.decays(task);
        } else {
          decays[t] = std::exp(log_decay(r, h, gate_of(r, row, h)));
        }
        strengths[t] = r.delta ? r.strength / (1 + std::exp(-row[n_decays + h]))
                               : step_of(r, gate_of(r, row, h));
      }
    }
  });

  const int64_t width = kernels_.recur_columns;
  const int64_t pieces = (r.value_dim + width - 1) / width;
  const int64_t of_sequence = r.n_heads * pieces;
  pool_.parallel_for(batch.n_sequences * of_sequence, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t s = i / of_sequence;
      const int64_t head = i % of_sequence / pieces;
      const int64_t column = i % pieces * width;
      const int64_t row = batch.query_start[s];
      const int64_t tokens = batch.query_start[s + 1] - row;
      if (tokens == 0) continue;
      const auto at = [&](const Matrix& m, int64_t col) {
        return static_cast<float*>(m.data) + row * m.stride + col;
      };
      const auto state = [&](int32_t n) {
        return states.data + n * states.stride + head * r.key_dim * r.value_dim + column;
      };
      const int64_t key = head / (r.n_heads / r.n_key_heads) * r.key_dim;
      RecurTask task;
      task.q = at(q, key);
      task.q_stride = q.stride;
      task.k = at(k, key);
      task.k_stride = k.stride;
      task.v = at(v, head * r.value_dim + column);
      task.v_stride = v.stride;
      task.out = at(out, head * r.value_dim + column);
      task.out_stride = out.stride;
      task.tokens = tokens;
      task.key_dim = r.key_dim;
      task.columns = std::min(width, r.value_dim - column);
      task.decays = factors + head * of_each + row * channels;
      task.by_channel = r.by_channel;
      task.strengths = factors + head * of_each + channels * batch.n_tokens + row;
      task.delta = r.delta;
      task.unit_eps = r.unit_eps;
      task.query_scale = r.query_scale;
      if (r.skips != nullptr) task.skip = r.skips[head];
      task.from = state(batch.state_from[s]);
      task.to = state(batch.state_to[s]);
      task.border_tokens = border_of(batch.kv_len[s]) - (batch.kv_len[s] - tokens);
      if (batch.state_border[s] != 0) task.border = state(batch.state_border[s]);
      task.stride = r.value_dim;
      kernels_.recur(task);
    }
  });
}

}  // namespace faststream
