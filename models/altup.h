// The streams beside the one that layers work on (AltUpConfig).
#pragma once

#include "models/decoder_weights.h"
#include "models/mixers.h"
#include "models/stream.h"

namespace faststream {

/// One pass's, which are in the stream's rows. Of weights that are absent there are none.
class AltUp {
 public:
  /// Makes them of the embedding.
  AltUp(const Pass& pass, const AltUpWeights& weights, Stream& embedded);

  /// Has all predicted from all, before a layer.
  void predict(const AltUpLayerWeights& weights, Stream& stream) const;
  /// Adds to each what the layer has changed.
  void correct(const AltUpLayerWeights& weights, Stream& stream) const;
  /// The mean of all, at last.
  void merge(Stream& stream) const;

 private:
  void combine(const AltUpLayerWeights& weights, const Linear& coefficients, Stream& stream) const;

  const Pass& pass_;
  const AltUpWeights& weights_;
};

}  // namespace faststream
