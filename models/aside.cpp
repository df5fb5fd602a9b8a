// Zamba 2's shared block (arXiv:2411.15242): attention to the stream and the embedding side by
// side, and a feed-forward of what that gives.
#include "models/aside.h"

#include "models/feed_forward.h"

namespace faststream {

Matrix with_aside(const Pass& pass, const AsideConfig& config, const AsideWeights& weights,
                  const Matrix& stream) {
  const int64_t hidden = stream.cols;
  const Matrix wide = pass.rows_in(pass.memory.beside_embedding, 2 * hidden);
  const Matrix attended = pass.rows_in(pass.memory.aside, hidden);
  const Matrix sum = pass.rows_in(pass.memory.stream_and_aside, hidden);
  const auto copy = [&](const Matrix& from, const Matrix& to) {
    pass.backend.norm(from, {}, OutputMode::store, to);
  };

  copy(stream, wide.columns(0, hidden));
  Input beside{
      .x = wide, .norm = weights.norm, .normed = pass.rows_in(pass.memory.normed_wide, 2 * hidden)};
  mix(pass, weights.attention, beside)(OutputMode::store, attended);
  Input input{
      .x = attended, .norm = weights.ffn_norm, .normed = pass.rows_in(pass.memory.normed, hidden)};
  copy(stream, sum);
  feed_forward(pass, config.ffn, weights.ffn, input, OutputMode::add, sum);
  return sum;
}

}  // namespace faststream
