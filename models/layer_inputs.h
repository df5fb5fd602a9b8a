// What each layer learns of a token by itself (LayerInputsConfig).
#pragma once

#include "models/decoder_weights.h"
#include "models/mixers.h"
#include "models/stream.h"

namespace faststream {

/// One pass's inputs of all layers, in the activations' `layer_inputs`.
class LayerInputs {
 public:
  /// Makes them of the batch's tokens and their embeddings. Of weights that are absent there are
  /// none.
  LayerInputs(const Pass& pass, const LayerInputsWeights& weights, const Stream& embedded);

  /// Goes on with the rows whose logits are wanted alone, for the last layer.
  void keep_wanted();

  /// Adds to the stream, or to others beside it, what layer n makes of its own.
  void add(int64_t n, const LayerInputWeights& weights, Stream& stream) const;

 private:
  const Pass& pass_;
  Matrix all_ = {};   // [tokens, layers · size]
  Matrix last_ = {};  // [wanted rows, size], of the last layer; without data: of all tokens
};

}  // namespace faststream
