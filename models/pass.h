// One forward pass: what all that takes part in it works with.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "models/activations.h"
#include "models/model.h"

namespace faststream {

/// What mixers and feed-forwards work with in a step.
struct Pass {
  Backend& backend;
  const Activations& memory;
  const BatchView& batch;
  LayerMemory layers;

  /// Rows of all tokens of the step, of so many columns, in one of the activations.
  [[nodiscard]] Matrix rows_in(const Matrix& activation, int64_t columns) const {
    return activation.first_rows(batch.n_tokens).columns(0, columns);
  }
  /// The same, one after the other.
  [[nodiscard]] Matrix without_gaps(const Matrix& activation, int64_t columns) const {
    return {activation.data, activation.dtype, batch.n_tokens, columns};
  }
};

}  // namespace faststream
