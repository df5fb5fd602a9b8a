#include "models/altup.h"

namespace faststream {

AltUp::AltUp(const Pass& pass, const AltUpWeights& weights, Stream& embedded)
    : pass_(pass), weights_(weights) {
  if (!weights) return;
  const int64_t hidden = embedded.rows().cols;
  const Matrix others = embedded.parts().columns(hidden, weights.in.weight.rows);
  Input input = embedded.before({}, pass.memory.normed);
  pass.backend.linear(input, weights.in.weight, {}, others);
  for (int64_t at = 0; at < others.cols; at += hidden) {
    pass.backend.match_lengths(embedded.rows(), others.columns(at, hidden));
  }
  // The stream as it was: nothing takes it yet, but zero times what memory held may be NaN.
  const Matrix before = embedded.parts().columns(hidden + others.cols, hidden);
  pass.backend.norm(embedded.rows(), {}, OutputMode::store, before);
}

void AltUp::predict(const AltUpLayerWeights& weights, Stream& stream) const {
  if (weights_) combine(weights, weights.predict, stream);
}

void AltUp::correct(const AltUpLayerWeights& weights, Stream& stream) const {
  if (weights_) combine(weights, weights.correct, stream);
}

void AltUp::combine(const AltUpLayerWeights& weights, const Linear& coefficients,
                    Stream& stream) const {
  const int64_t rows = stream.rows().rows;
  const Matrix routed = pass_.memory.altup_routed.first_rows(rows);
  const Matrix products = pass_.memory.altup_products.first_rows(rows);
  Input input = stream.before(weights.norm, pass_.memory.normed);
  pass_.backend.linear(input, weights.router.weight,
                       {.activation = Activation::tanh, .in_order = true}, routed);
  Input of_products{.x = routed};
  pass_.backend.linear(of_products, coefficients.weight,
                       {.bias = coefficients.bias, .in_order = true}, products);
  pass_.backend.combine(products, weights_.parts, stream.parts());
  stream.is_changed();
}

void AltUp::merge(Stream& stream) const {
  if (!weights_ || stream.rows().rows == 0) return;
  const int64_t hidden = stream.rows().cols;
  const Matrix others = pass_.memory.altup_others.first_rows(stream.rows().rows);
  const Matrix projected = pass_.memory.altup_projected.first_rows(stream.rows().rows);
  pass_.backend.norm(stream.parts().columns(hidden, others.cols), {}, OutputMode::store, others);
  pass_.backend.head_linear(others, weights_.out, others.cols / hidden, projected);
  for (int64_t at = 0; at < projected.cols; at += hidden) {
    pass_.backend.match_lengths(stream.rows(), projected.columns(at, hidden));
  }
  for (int64_t at = 0; at < projected.cols; at += hidden) {
    pass_.backend.norm(projected.columns(at, hidden), {}, OutputMode::add, stream.rows());
  }
  stream.scale(weights_.share);
}

}  // namespace faststream
