#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::embed(const BatchView& batch, const Weight& table, const Matrix& out) {
  require_f32(out, batch.n_tokens, table.cols, "embed: out must be [tokens, hidden] f32");
  const auto row_bytes = table.cols * static_cast<int64_t>(dtype_size(table.dtype));
  pool_.parallel_for(batch.n_tokens, 16, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int32_t token = batch.tokens[t];
      require(token >= 0 && token < table.rows, "embed: a token id is outside the vocabulary");
      kernels_.widen(static_cast<const std::byte*>(table.data) + token * row_bytes,
                     float_type(table.dtype), table.cols,
                     static_cast<float*>(out.data) + t * out.stride);
    }
  });
}

}  // namespace faststream
