// A learned augmented residual (LaurelConfig).
#pragma once

#include "models/decoder_weights.h"
#include "models/mixers.h"
#include "models/stream.h"

namespace faststream {

/// Adds to the stream, to which the mixer has added, what that has read, `input`, whose rows are
/// ready, and what the weights make of it. Does nothing where they are absent.
void augment(const Pass& pass, const LaurelWeights& weights, const Input& input, Stream& stream);

}  // namespace faststream
