#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) {
  const Weight& table = embedding.table;
  const Weight& positions = embedding.positions;
  const int64_t hidden = table.cols;
  const bool has_positions = positions.data != nullptr;
  require_f32(out, batch.n_tokens, hidden, "embed: out must be [tokens, hidden] f32");
  require(!has_positions || positions.cols == hidden,
          "embed: the positions must be [positions, hidden]");
  const auto widen_row = [&](const Weight& rows, int64_t row, float* to) {
    const int64_t bytes = hidden * static_cast<int64_t>(dtype_size(rows.dtype));
    kernels_.widen(static_cast<const std::byte*>(rows.data) + row * bytes, float_type(rows.dtype),
                   hidden, to);
  };
  pool_.parallel_for(
      batch.n_tokens, 16, batch.n_tokens, [&](int thread, int64_t first, int64_t last) {
        auto* position = thread_scratch_[static_cast<size_t>(thread)].get<float>(hidden);
        for (int64_t t = first; t < last; ++t) {
          float* to = static_cast<float*>(out.data) + t * out.stride;
          const int32_t token = batch.tokens[t];
          require(token >= 0 && token < table.rows, "embed: a token id is outside the vocabulary");
          widen_row(table, token, to);
          if (embedding.multiplier != 1) {
            for (int64_t i = 0; i < hidden; ++i) to[i] *= embedding.multiplier;
          }
          if (!has_positions) continue;
          const int64_t row = int64_t{batch.positions[t]} + embedding.offset;
          require(row >= 0 && row < positions.rows, "embed: a position has no row");
          widen_row(positions, row, position);
          for (int64_t i = 0; i < hidden; ++i) to[i] += position[i];
        }
      });
}

}  // namespace faststream
