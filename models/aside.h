// A block beside the residual stream (AsideConfig).
#pragma once

#include "models/mixers.h"

namespace faststream {

/// The stream and what the block makes of it and of the embedding, [tokens, hidden] f32 both.
Matrix with_aside(const Pass& pass, const AsideConfig& config, const AsideWeights& weights,
                  const Matrix& stream);

}  // namespace faststream
