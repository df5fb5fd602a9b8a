// What a layer computes of each token by itself.
#pragma once

#include <utility>

#include "models/activations.h"
#include "models/decoder_weights.h"
#include "models/mixers.h"
#include "models/stream.h"
#include "models/tables.h"

namespace faststream {

/// What experts of one layer have given for after the next.
class Deferred {
 public:
  explicit Deferred(const Pass& pass) : pass_(pass) {}

  /// Memory for what a layer defers, of all tokens.
  [[nodiscard]] Matrix put() {
    return rows_ = pass_.memory.deferred.first_rows(pass_.batch.n_tokens);
  }
  /// What the layer before has; without data: nothing.
  [[nodiscard]] Matrix take() { return std::exchange(rows_, {}); }
  /// Goes on with the rows whose logits are wanted alone.
  void keep_wanted();
  /// Goes on with these rows alone.
  void keep(int64_t first, int64_t count) {
    if (rows_.data != nullptr) rows_ = rows_.row_range(first, count);
  }

 private:
  const Pass& pass_;
  Matrix rows_ = {};
};

/// Gives a layer's experts what they read besides tensors. rank: whose share the layer is.
void complete_experts(const LayerConfig& layer, const RankPlace& rank, LayerWeights& weights,
                      Backend& backend, Tables& tables);

/// Adds to the stream what the layer's feed-forward, or its experts, give of `input`, and
/// what was deferred before.
void feed_forward(const Pass& pass, const LayerConfig& layer, const LayerWeights& weights,
                  Input& input, Stream& stream, Deferred& deferred);

/// out [rows, hidden] f32 = or += what a feed-forward without experts makes of the input.
void feed_forward(const Pass& pass, const FeedForwardConfig& ffn, const FeedForwardWeights& weights,
                  Input& input, OutputMode output, const Matrix& out);

}  // namespace faststream
