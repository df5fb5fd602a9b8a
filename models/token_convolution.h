// A convolution of the tokens around each (TokenConvolutionConfig).
#pragma once

#include "models/decoder_weights.h"
#include "models/pass.h"
#include "models/stream.h"

namespace faststream {

// These do nothing where weights are absent.

/// Keeps what the layer reads, the stream of whole texts, in the memory of what is convolved.
void keep_tokens_around(const Pass& pass, const TokenConvolutionWeights& weights,
                        const Stream& stream);

/// Adds to the stream, to which the layer has added all else, what the weights make of that.
void add_convolution(const Pass& pass, const TokenConvolutionWeights& weights, Stream& stream);

}  // namespace faststream
