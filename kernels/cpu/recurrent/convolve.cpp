// Work is split by sequence and by channels.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// Channels that a thread takes at a time, at least and, of many tokens, at most: each of them has
// so many lines one after the other.
constexpr int64_t kLeastChannels = 64;
constexpr int64_t kMostChannels = 512;

// The last `tail` elements of channels [first, last) after `tokens` tokens, to a state.
void store_tail(const ConvolveTask& task, int64_t tokens, float* state) {
  const int64_t tail = task.taps - 1;
  for (int64_t i = 0; i < tail; ++i) {
    const int64_t token = tokens - tail + i;
    const float* from =
        token < 0 ? task.before + (tail + token) * task.stride : task.x + token * task.x_stride;
    std::copy_n(from, task.channels, state + i * task.stride);
  }
}

}  // namespace

void CpuBackend::convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                          const StateLayer& states, const Matrix& out) {
  require_f32(x, batch.n_tokens, x.cols, "convolve: x must be [tokens, channels] f32");
  require_f32(out, batch.n_tokens, x.cols, "convolve: out must be [tokens, channels] f32");
  const int64_t channels = x.cols;
  const int64_t most = batch.max_query_len > 1 ? kMostChannels : kLeastChannels;
  const int64_t each = channels / (2 * pool_.size()) / kLeastChannels * kLeastChannels;
  const int64_t grain = std::clamp(each, kLeastChannels, most);
  const int64_t pieces = (channels + grain - 1) / grain;
  pool_.parallel_for(batch.n_sequences * pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto s = static_cast<int32_t>(i / pieces);
      const int64_t c = i % pieces * grain;
      const int32_t row = batch.query_start[s];
      const auto state = [&](int32_t n) { return states.data + n * states.stride + c; };
      ConvolveTask task;
      task.x = static_cast<const float*>(x.data) + row * x.stride + c;
      task.x_stride = x.stride;
      task.out = static_cast<float*>(out.data) + row * out.stride + c;
      task.out_stride = out.stride;
      task.tokens = batch.query_start[s + 1] - row;
      task.channels = std::min(grain, channels - c);
      task.before = state(batch.state_from[s]);
      task.weight = convolution.weight + c;
      task.stride = channels;
      if (convolution.bias != nullptr) task.bias = convolution.bias + c;
      task.taps = convolution.taps;
      task.activation = convolution.activation;
      kernels_.convolve(task);
      store_tail(task, task.tokens, state(batch.state_to[s]));
      const int64_t before_border = border_of(batch.kv_len[s]) - (batch.kv_len[s] - task.tokens);
      if (batch.state_border[s] != 0 && before_border > 0) {
        store_tail(task, before_border, state(batch.state_border[s]));
      }
    }
  });
}

}  // namespace faststream
