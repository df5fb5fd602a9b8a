#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) {
  const Weight& table = embedding.table;
  const int64_t hidden = table.cols;
  require_f32(out, batch.n_tokens, hidden, "embed: out must be [tokens, hidden] f32");
  for (const Weight* rows : {&embedding.positions, &embedding.segments}) {
    require(rows->data == nullptr || rows->cols == hidden,
            "embed: positions and segments must have the table's columns");
  }
  const auto widen_row = [&](const Weight& rows, int64_t row, float* to) {
    kernels_.widen(rows.row(row), float_type(stored_type(rows.format)), hidden, to);
  };
  pool_.parallel_for(
      batch.n_tokens, 16, batch.n_tokens, [&](int thread, int64_t first, int64_t last) {
        auto* added = thread_scratch_[static_cast<size_t>(thread)].get<float>(hidden);
        const auto add_row = [&](const Weight& rows, int64_t row, float* to) {
          if (rows.data == nullptr) return;
          require(row >= 0 && row < rows.rows, "embed: a position or segment has no row");
          widen_row(rows, row, added);
          for (int64_t i = 0; i < hidden; ++i) to[i] += added[i];
        };
        for (int64_t t = first; t < last; ++t) {
          float* to = static_cast<float*>(out.data) + t * out.stride;
          const int32_t token = token_of(batch, t);
          require(token >= 0 && token < table.rows, "embed: a token id is outside the vocabulary");
          widen_row(table, token, to);
          if (embedding.multiplier != 1) {
            for (int64_t i = 0; i < hidden; ++i) to[i] *= embedding.multiplier;
          }
          add_row(embedding.positions, int64_t{batch.positions[t]} + embedding.offset, to);
          add_row(embedding.segments, batch.segments != nullptr ? batch.segments[t] : 0, to);
        }
      });
}

}  // namespace faststream
