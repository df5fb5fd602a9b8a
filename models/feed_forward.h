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

/// out [rows, hidden] f32 = or += what a feed-forward without experts makes of the input.
void feed_forward(const Pass& pass, const FeedForwardConfig& ffn, const FeedForwardWeights& weights,
                  Input& input, OutputMode output, const Matrix& out);

}  // namespace faststream
