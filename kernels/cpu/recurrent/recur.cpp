// Work is split by sequence, by head and, where that leaves threads without any, by columns of its
// matrix, which do not need each other.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// Columns of a head that are not divided among threads, which would make the same factors.
constexpr int64_t kLeastColumns = kRecurColumns;

}  // namespace

void CpuBackend::recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
                       const Matrix& gates, const Recurrence& r, const StateLayer& states,
                       const Matrix& out) {
  require_f32(q, batch.n_tokens, int64_t{r.n_key_heads} * r.key_dim, "recur: q has another shape");
  require_f32(k, batch.n_tokens, q.cols, "recur: k has another shape");
  require_f32(v, batch.n_tokens, int64_t{r.n_heads} * r.value_dim, "recur: v has another shape");
  require_f32(gates, batch.n_tokens, gate_columns(r), "recur: gates have another shape");
  require_f32(out, batch.n_tokens, v.cols, "recur: out has another shape");
  const int64_t heads = int64_t{batch.n_sequences} * r.n_heads;
  const int64_t wanted = (2 * pool_.size() + heads - 1) / std::max<int64_t>(heads, 1);
  const int64_t most = (r.value_dim + kLeastColumns - 1) / kLeastColumns;
  const int64_t width =
      (most + std::min(wanted, most) - 1) / std::min(wanted, most) * kLeastColumns;
  const int64_t pieces = (r.value_dim + width - 1) / width;
  const int64_t of_sequence = r.n_heads * pieces;
  const int64_t channels = r.by_channel ? r.key_dim : 1;
  const int64_t n_decays = gate_columns(r) - (r.delta ? r.n_heads : 0);
  pool_.parallel_for(heads * pieces, 1, 1, [&](int thread, int64_t i, int64_t) {
    const int64_t s = i / of_sequence;
    const int64_t head = i % of_sequence / pieces;
    const int64_t column = i % pieces * width;
    const int64_t row = batch.query_start[s];
    const int64_t tokens = batch.query_start[s + 1] - row;
    if (tokens == 0) return;
    const auto at = [&](const Matrix& m, int64_t col) {  // null: there are no gates
      auto* data = static_cast<float*>(m.data);
      return data == nullptr ? nullptr : data + row * m.stride + col;
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
    task.gates = at(gates, head * channels);
    task.gates_stride = gates.stride;
    task.strength_gates = at(gates, n_decays + head);
    if (r.steps != nullptr) task.steps = r.steps + head * channels;
    task.delta = r.delta;
    task.by_channel = r.by_channel;
    task.strength = r.strength;
    task.unit_eps = r.unit_eps;
    task.query_scale = r.query_scale;
    task.rate = r.rates[head];
    if (r.skips != nullptr) task.skip = r.skips[head];
    task.least_log_decay = r.least_log_decay;
    task.least_step = r.least_step;
    task.most_step = r.most_step;
    task.from = state(batch.state_from[s]);
    task.to = state(batch.state_to[s]);
    task.border_tokens = border_of(batch.kv_len[s]) - (batch.kv_len[s] - tokens);
    if (batch.state_border[s] != 0) task.border = state(batch.state_border[s]);
    task.stride = r.value_dim;
    task.scratch = thread_scratch_[static_cast<size_t>(thread)].get<float>(
        recur_scratch(r.key_dim, task.columns));
    kernels_.recur(task);
  });
}

}  // namespace faststream
