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

}  // namespace

void CpuBackend::recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
                       const Matrix& gates, const Recurrence& r, const StateLayer& states,
                       const Matrix& out) {
  require_f32(q, batch.n_tokens, int64_t{r.n_key_heads} * r.key_dim, "recur: q has another shape");
  require_f32(k, batch.n_tokens, q.cols, "recur: k has another shape");
  require_f32(v, batch.n_tokens, int64_t{r.n_heads} * r.value_dim, "recur: v has another shape");
  require_f32(gates, batch.n_tokens, r.n_heads * (r.delta ? 2 : 1),
              "recur: gates have another shape");
  require_f32(out, batch.n_tokens, v.cols, "recur: out has another shape");
  // Of each head a row of factors and one of strengths.
  auto* factors = shared_scratch_.get<float>(2 * int64_t{r.n_heads} * batch.n_tokens);
  pool_.parallel_for(r.n_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t h = first; h < last; ++h) {
      float* decays = factors + 2 * h * batch.n_tokens;
      float* strengths = decays + batch.n_tokens;
      for (int64_t t = 0; t < batch.n_tokens; ++t) {
        const float* row = static_cast<const float*>(gates.data) + t * gates.stride;
        const float step = std::clamp(softplus(row[h] + r.steps[h]), r.least_step, r.most_step);
        decays[t] = std::exp(r.rates[h] * step);
        strengths[t] = r.delta ? r.strength / (1 + std::exp(-row[r.n_heads + h])) : step;
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
      task.decays = factors + 2 * head * batch.n_tokens + row;
      task.strengths = task.decays + batch.n_tokens;
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
