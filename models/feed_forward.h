// What a layer computes of each token by itself.
#pragma once

#include "models/activations.h"
#include "models/decoder_weights.h"
#include "models/mixers.h"
#include "models/stream.h"

namespace faststream {

/// Adds to the stream what the layer's feed-forward, or its experts, give of `input`.
void feed_forward(const Pass& pass, const LayerConfig& layer, const LayerWeights& weights,
                  Input& input, Stream& stream);

}  // namespace faststream
