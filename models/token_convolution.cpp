#include "models/token_convolution.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace faststream {
namespace {

// to [tokens, hidden] = of each token that of the one so many places after it in its text, which
// may be below 0, or zeros.
void shift(const Pass& pass, const Matrix& rows, int64_t places, const float* zeros,
           const Matrix& to) {
  const int64_t kept = rows.rows - std::abs(places);
  const int64_t before = std::max<int64_t>(-places, 0);  // rows of `to` before the first one kept
  if (kept > 0) {
    pass.backend.norm(rows.row_range(before + places, kept), {}, OutputMode::store,
                      to.row_range(before, kept));
  }
  const std::vector<int32_t>& starts = pass.batch.host->query_start;
  for (size_t text = 0; text + 1 < starts.size(); ++text) {
    const int64_t count = std::min<int64_t>(std::abs(places), starts[text + 1] - starts[text]);
    const int64_t first = places < 0 ? starts[text] : starts[text + 1] - count;
    if (count > 0) {
      pass.backend.norm(Matrix::repeated(zeros, count, to.cols), {}, OutputMode::store,
                        to.row_range(first, count));
    }
  }
}

}  // namespace

void keep_tokens_around(const Pass& pass, const TokenConvolutionWeights& weights,
                        const Stream& stream) {
  if (!weights) return;
  const Matrix& rows = stream.rows();
  const Matrix around = pass.rows_in(pass.memory.tokens_around, weights.product.weight.cols);
  const int64_t taps = around.cols / rows.cols;
  for (int64_t tap = 0; tap < taps; ++tap) {
    shift(pass, rows, tap - taps / 2, weights.zeros, around.columns(tap * rows.cols, rows.cols));
  }
}

void add_convolution(const Pass& pass, const TokenConvolutionWeights& weights, Stream& stream) {
  if (!weights) return;
  const Matrix& product = pass.rows_in(pass.memory.branch, stream.rows().cols);
  Input input{.x = pass.rows_in(pass.memory.tokens_around, weights.product.weight.cols)};
  multiply_and_activate(pass, input, weights.product, weights.activation, product);
  stream.add(
      {.before = {}, .after = {}, .stream = weights.norm},
      [&](OutputMode output, const Matrix& out) { pass.backend.norm(product, {}, output, out); });
}

}  // namespace faststream
