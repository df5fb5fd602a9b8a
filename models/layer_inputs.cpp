#include "models/layer_inputs.h"

namespace faststream {
namespace {

// Each layer's part of a row as a row of its own.
Matrix row_for_each_layer(const Matrix& rows, int64_t size) {
  return {rows.data, rows.dtype, rows.rows * rows.cols / size, size};
}

}  // namespace

LayerInputs::LayerInputs(const Pass& pass, const LayerInputsWeights& weights,
                         const Stream& embedded)
    : pass_(pass) {
  if (!weights) return;
  const int64_t tokens = pass.batch.n_tokens;
  all_ = pass.memory.layer_inputs.first_rows(tokens);
  const bool has_table = weights.embedding.table.data != nullptr;
  if (has_table) pass.backend.embed(pass.batch, weights.embedding, all_);
  const Matrix projected = pass.memory.projected_inputs.first_rows(tokens);
  Input input = embedded.before({}, pass.memory.normed);
  pass.backend.linear(input, weights.projection.weight, {}, projected);
  const int64_t size = pass.memory.input_gate.cols;
  pass.backend.norm(row_for_each_layer(projected, size), weights.norm,
                    has_table ? OutputMode::add : OutputMode::store,
                    row_for_each_layer(all_, size));
}

void LayerInputs::keep_wanted() {
  if (all_.data == nullptr) return;
  const int64_t size = pass_.memory.input_gate.cols;
  last_ = pass_.memory.last_input.first_rows(pass_.batch.n_logits);
  pass_.backend.gather_rows(pass_.batch, all_.columns(all_.cols - size, size), last_);
}

void LayerInputs::add(int64_t n, const LayerInputWeights& weights, Stream& stream) const {
  if (!weights) return;
  const Matrix gate = pass_.memory.input_gate.first_rows(stream.rows().rows);
  Input input = stream.before({}, pass_.memory.normed);
  if (weights.scale != nullptr) {
    input = {.x = pass_.memory.normed.first_rows(stream.rows().rows)};
    pass_.backend.norm(stream.rows(), {}, OutputMode::store, input.x);
    const Matrix scale(const_cast<float*>(weights.scale), DType::f32, 1, input.x.cols);
    pass_.backend.scale(scale, Activation::none, input.x);
  }
  pass_.backend.linear(input, weights.gate.weight, {.activation = weights.activation}, gate);
  const Matrix own = last_.data != nullptr ? last_ : all_.columns(n * gate.cols, gate.cols);
  pass_.backend.scale(own, Activation::none, gate);
  stream.add_to_others(weights.norms, LastProduct{pass_, {.x = gate}, weights.out});
}

}  // namespace faststream
