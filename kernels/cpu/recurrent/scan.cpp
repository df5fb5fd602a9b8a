// Work is split by sequence and by channels.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::scan(const BatchView& batch, const Matrix& x, const Matrix& steps, const Matrix& b,
                      const Matrix& c, const SelectiveScan& scan, const StateLayer& states,
                      const Matrix& out) {
  const int64_t channels = x.cols;
  require_f32(x, batch.n_tokens, channels, "scan: x must be [tokens, channels] f32");
  require_f32(steps, batch.n_tokens, channels, "scan: steps must be [tokens, channels] f32");
  require_f32(b, batch.n_tokens, scan.state_size, "scan: b must be [tokens, state_size] f32");
  require_f32(c, batch.n_tokens, scan.state_size, "scan: c must be [tokens, state_size] f32");
  require_f32(out, batch.n_tokens, channels, "scan: out must be [tokens, channels] f32");
  const int64_t pieces = (channels + kScanChannels - 1) / kScanChannels;
  pool_.parallel_for(
      batch.n_sequences * pieces, 1, batch.n_sequences * pieces,
      [&](int thread, int64_t first, int64_t last) {
        auto* scratch =
            thread_scratch_[static_cast<size_t>(thread)].get<float>(scan_scratch(scan.state_size));
        for (int64_t i = first; i < last; ++i) {
          const auto s = static_cast<int32_t>(i / pieces);
          const int64_t channel = i % pieces * kScanChannels;
          const int64_t row = batch.query_start[s];
          ScanTask task;
          task.tokens = batch.query_start[s + 1] - row;
          if (task.tokens == 0) continue;
          const auto at = [&](const Matrix& m, int64_t col) {
            return static_cast<float*>(m.data) + row * m.stride + col;
          };
          const auto state = [&](int32_t n) { return states.data + n * states.stride + channel; };
          task.x = at(x, channel);
          task.x_stride = x.stride;
          task.gates = at(steps, channel);
          task.gates_stride = steps.stride;
          task.b = at(b, 0);
          task.b_stride = b.stride;
          task.c = at(c, 0);
          task.c_stride = c.stride;
          task.out = at(out, channel);
          task.out_stride = out.stride;
          task.channels = std::min(kScanChannels, channels - channel);
          task.state_size = scan.state_size;
          task.rates = scan.rates + channel;
          task.steps = scan.steps + channel;
          task.skips = scan.skips + channel;
          task.from = state(batch.state_from[s]);
          task.to = state(batch.state_to[s]);
          task.border_tokens = border_of(batch.kv_len[s]) - (batch.kv_len[s] - task.tokens);
          if (batch.state_border[s] != 0) task.border = state(batch.state_border[s]);
          task.stride = channels;
          task.scratch = scratch;
          kernels_.scan(task);
        }
      });
}

}  // namespace faststream
