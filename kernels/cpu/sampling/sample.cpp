#include "kernels/cpu/sampling/sample.h"

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::sample_rows(const Matrix& logits, std::span<const SamplingRow> rules,
                             std::span<SampledToken> sampled) {
  const auto rows = static_cast<int64_t>(rules.size());
  require_f32(logits, rows, logits.cols, "sample: logits must have one f32 row for each rule");
  require(sampled.size() == rules.size(), "sample: one token for each rule");
  pool_.parallel_for(rows, 1, 1, [&](int thread, int64_t r, int64_t) {
    float* row = static_cast<float*>(logits.data) + r * logits.stride;
    const auto i = static_cast<size_t>(r);
    sampled[i] = sample_row({row, static_cast<size_t>(logits.cols)}, rules[i],
                            rankings_[static_cast<size_t>(thread)]);
  });
}

}  // namespace faststream
