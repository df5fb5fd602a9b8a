// What a decoder has in memory between operations.
#pragma once

#include <algorithm>
#include <functional>
#include <variant>
#include <vector>

#include "backend/tensor.h"
#include "models/adapter_plan.h"
#include "models/config.h"
#include "models/model.h"

namespace faststream {

/// What the output matrix is multiplied by: rows of its own type where both have 16 bits, which is
/// what the tensor cores take.
inline DType last_type(DType act, WeightFormat output) {
  const DType type = stored_type(output);
  return dtype_size(act) == 2 && dtype_size(type) == 2 ? type : act;
}

/// The largest value of a figure of the layers' kinds.
template <typename Figure>
int64_t largest_of_layers(const ModelConfig& config, Figure figure) {
  int64_t value = 0;
  for (const LayerConfig& layer : config.layer_kinds) value = std::max(value, figure(layer));
  return value;
}

/// The same of their mixers of one kind.
template <typename Kind, typename Figure>
int64_t largest_of_mixers(const ModelConfig& config, Figure figure) {
  return largest_of_layers(config, [&](const LayerConfig& layer) {
    const Kind* mixer = layer.find<Kind>();
    return mixer != nullptr ? int64_t{figure(*mixer)} : 0;
  });
}

inline bool has_own_input(const LayerConfig& layer) {
  return layer.parallel && layer.ffn_norms.before.kind != NormKind::none;
}

/// Elements of a feed-forward's middle: where gates are cut, or adapters may change them, they are
/// products of their own.
inline int64_t middle_dim(const ModelConfig& config, const FeedForwardConfig& ffn) {
  return ffn.cutoff || !config.adapters.empty() ? ffn.up_dim() : ffn.size;
}

inline bool normalizes_stream(const LayerConfig& layer) {
  return layer.mixer_norms.stream || layer.ffn_norms.stream ||
         (layer.cross_attention && layer.cross_attention->norms.stream);
}

/// The matrices between operations, one buffer each, allocated once for the largest batch.
struct Activations {
  Matrix residual;              ///< [tokens, stream_dim] f32: the residual stream, and others
  Matrix embedded;              ///< [tokens, embedding.size] f32: what is projected to it
  Matrix embedded_normed;       ///< [tokens, embedding.size]
  Matrix stream_copy;           ///< [tokens, hidden]: the stream, where it is normalized itself
  Matrix normed;                ///< [tokens, hidden]: what a branch reads
  Matrix normed_for_ffn;        ///< [tokens, hidden]: of parallel branches with two norms
  Matrix hidden_input;          ///< [tokens, hidden] f32: of a predictor, what it is given
  Matrix kept_hidden;           ///< [kMostKeptHidden, hidden] f32: likewise, for later
  Matrix joined_states;         ///< [tokens, n hidden]: likewise, of n layers, normalized
  Matrix layer_states;          ///< [tokens, n hidden] f32: of a decoder, for its predictors
  Matrix finished_states;       ///< likewise, of the first stage: of a step that all have done
  Matrix beside_hidden;         ///< [tokens, 2 hidden]: the embedding, then that, normalized
  Matrix beside_embedding;      ///< [tokens, 2 hidden] f32: the stream, then the embedding
  Matrix normed_wide;           ///< [tokens, 2 hidden]: of these
  Matrix aside;                 ///< [tokens, hidden] f32: what attention gives there
  Matrix stream_and_aside;      ///< [tokens, hidden] f32
  Matrix branch;                ///< [tokens, hidden] f32: what a branch gives, if it is normalized
  Matrix part;                  ///< [tokens, hidden] f32: what a part of it gives, likewise
  Matrix share;                 ///< [tokens, hidden] f32: what this rank gives of a shared branch
  std::vector<Matrix> cos_sin;  ///< a rope: [tokens, dims] f32
  /// [tokens, in_dim of attention, or in of a recurrent mixer], or latent queries and what is kept
  Matrix qkv;
  Matrix relative_to_queries;  ///< [tokens, n_heads · rows]: relative scores of queries
  Matrix relative_to_keys;     ///< likewise of keys
  Matrix convolved;            ///< [tokens, channels] of a recurrent mixer
  Matrix steps;            ///< [tokens, raised + gates] f32 of a recurrent mixer, or gates of heads
  Matrix attended;         ///< [tokens, sums of attention, latents' too, or of a recurrent mixer]
  Matrix latents;          ///< [tokens, q_rank, or rank of a recurrent mixer]
  Matrix heads;            ///< [tokens, q_dim + sums_dim] of latent attention
  Matrix middle;           ///< [tokens, size of the feed-forward], its gates first where cut
  Matrix laurel;           ///< [tokens, rank]
  Matrix tokens_around;    ///< [tokens, taps hidden]: what a convolution of tokens reads
  Matrix low_rank;         ///< [tokens, rank]: between the two products of an adapter
  Matrix altup_routed;     ///< [tokens, streams] f32
  Matrix altup_products;   ///< [tokens, parts²] f32
  Matrix altup_others;     ///< [tokens or logits, (streams - 1) hidden]
  Matrix altup_projected;  ///< likewise
  Matrix deferred;         ///< [tokens, hidden] f32: what experts give after the next layer
  Matrix last_deferred;    ///< [logits, hidden] f32: of wanted rows
  Matrix scores;           ///< [tokens, experts] f32
  Matrix gate;             ///< [tokens, 1] f32: of the shared expert
  Matrix layer_inputs;     ///< [tokens, layers · size] f32
  Matrix projected_inputs;  ///< [tokens, layers · size]: before their norm
  Matrix last_input;        ///< [logits, size] f32: of the last layer, of wanted rows
  Matrix input_gate;        ///< [tokens, size]
  Matrix last;              ///< [logits, stream_dim] f32: rows of the stream, of wanted logits
  Matrix last_normed;       ///< [logits, hidden]
  /// [logits, size] f32: pooled if anything is, then of each dense layer.
  std::vector<Matrix> vectors;
  std::vector<Matrix> token_vectors;  ///< [tokens, size] f32: of dense layers before pooling

  /// Calls visit(matrix) for each member once its shape is set.
  template <typename Visit>
  void layout(const ModelConfig& config, DType act, const BatchLimits& limits, Visit visit) {
    const auto shape = [&](Matrix& matrix, DType dtype, int64_t rows, int64_t cols) {
      matrix = Matrix(nullptr, dtype, rows, cols);
      if (cols > 0) visit(matrix);
    };
    const int64_t tokens = limits.max_tokens;
    const int64_t hidden = config.hidden;
    const auto hidden_if = [&](auto condition) {
      return largest_of_layers(config,
                               [&](const auto& layer) { return condition(layer) ? hidden : 0; });
    };
    shape(residual, DType::f32, tokens, config.stream_dim());
    shape(embedded, DType::f32, tokens, config.embedding.size);
    shape(embedded_normed, act, tokens, config.embedding.size);
    shape(stream_copy, act, tokens, act == DType::f32 ? 0 : hidden_if(normalizes_stream));
    shape(normed, act, tokens, hidden);
    shape(normed_for_ffn, act, tokens, hidden_if(has_own_input));
    const int64_t of_hidden_input = config.hidden_input ? hidden : 0;
    shape(hidden_input, DType::f32, tokens, of_hidden_input);
    shape(kept_hidden, DType::f32, kMostKeptHidden, of_hidden_input);
    shape(beside_hidden, act, tokens, 2 * of_hidden_input);
    const int64_t n_read = config.hidden_input ? config.hidden_input->layer_states.count() : 0;
    shape(joined_states, act, tokens, n_read * hidden);
    const int64_t of_states = std::ssize(states_kept(config)) * hidden;
    shape(layer_states, DType::f32, tokens, of_states);
    const bool finishes_steps = config.stage && config.has_first_layer();
    shape(finished_states, DType::f32, tokens, finishes_steps ? of_states : 0);
    const int64_t of_aside = hidden_if([](const LayerConfig& l) { return l.aside.has_value(); });
    shape(beside_embedding, DType::f32, tokens, 2 * of_aside);
    shape(normed_wide, act, tokens, 2 * of_aside);
    shape(aside, DType::f32, tokens, of_aside);
    shape(stream_and_aside, DType::f32, tokens, of_aside);
    shape(branch, DType::f32, tokens, hidden_if([](const LayerConfig& layer) {
            return layer.mixer_norms.after || layer.ffn_norms.after || layer.laurel ||
                   layer.token_convolution ||
                   (layer.cross_attention && layer.cross_attention->norms.after);
          }));
    shape(part, DType::f32, tokens, hidden_if([](const LayerConfig& layer) {
            return layer.experts && layer.experts->has_parts();
          }));
    shape(share, DType::f32, tokens, config.rank.count > 1 ? hidden : 0);
    cos_sin.resize(config.ropes.size());
    for (size_t n = 0; n < cos_sin.size(); ++n) {
      shape(cos_sin[n], DType::f32, tokens, config.ropes[n].dims());
    }
    const auto of_recurrent = [&](auto size) {
      return largest_of_layers(config, [&](const LayerConfig& layer) {
        return std::invoke(size, recurrent_shape(layer, hidden).value_or(RecurrentShape{}));
      });
    };
    const auto of_attention = [&](auto figure) {
      const int64_t of_asides = largest_of_layers(config, [&](const LayerConfig& layer) {
        return layer.aside ? int64_t{figure(layer.aside->attention)} : 0;
      });
      return std::max(of_asides, largest_of_mixers<AttentionConfig>(config, figure));
    };
    using Latent = LatentAttentionConfig;
    const auto of_latent = [&](auto figure) { return largest_of_mixers<Latent>(config, figure); };
    shape(qkv, act, tokens,
          std::max({of_attention([](const auto& a) { return a.in_dim(); }),
                    of_latent([](const Latent& a) { return a.latent_q_dim() + a.kept_dim(); }),
                    of_recurrent(&RecurrentShape::in)}));
    const auto of_relative = [&](bool RelativeScoresConfig::*are_there) {
      return largest_of_mixers<AttentionConfig>(config, [&](const AttentionConfig& a) {
        return a.relative_scores.*are_there ? a.n_heads * a.relative_scores.rows : int64_t{0};
      });
    };
    shape(relative_to_queries, act, tokens, of_relative(&RelativeScoresConfig::of_queries));
    shape(relative_to_keys, act, tokens, of_relative(&RelativeScoresConfig::of_keys));
    shape(convolved, act, tokens, of_recurrent(&RecurrentShape::channels));
    shape(
        steps, DType::f32, tokens,
        std::max(of_recurrent([](const RecurrentShape& r) { return r.raised + r.gates; }),
                 of_latent([](const Latent& a) { return a.head_gate ? a.n_heads : int64_t{0}; })));
    shape(attended, act, tokens,
          std::max({of_attention([](const auto& a) { return a.sums_dim(); }),
                    of_latent([](const Latent& a) { return a.n_heads * a.kv_rank; }),
                    of_recurrent(&RecurrentShape::sums)}));
    shape(latents, act, tokens,
          std::max(of_latent([](const Latent& a) { return a.q_rank; }),
                   of_recurrent(&RecurrentShape::rank)));
    shape(heads, act, tokens, of_latent([](const Latent& a) { return a.q_dim() + a.sums_dim(); }));
    shape(middle, act, tokens, largest_of_layers(config, [&](const auto& l) {
            return std::max({middle_dim(config, l.ffn),
                             l.experts ? middle_dim(config, l.experts->shared) : 0,
                             l.aside ? middle_dim(config, l.aside->ffn) : 0});
          }));
    shape(laurel, act, tokens,
          largest_of_layers(config, [](const auto& layer) { return layer.laurel.rank; }));
    shape(tokens_around, act, tokens, largest_of_layers(config, [&](const LayerConfig& layer) {
            return layer.token_convolution.taps * hidden;
          }));
    shape(low_rank, act, tokens, most_adapter_rank(config));
    const AltUpConfig& altup = config.altup;
    const int64_t altup_parts = altup ? altup.parts() : 0;
    const int64_t last_rows = config.output.none ? tokens : limits.max_logits;
    shape(altup_routed, DType::f32, tokens, altup.streams);
    shape(altup_products, DType::f32, tokens, altup_parts * altup_parts);
    for (Matrix* others : {&altup_others, &altup_projected}) {
      shape(*others, act, last_rows, altup ? (altup.streams - 1) * hidden : 0);
    }
    shape(scores, DType::f32, tokens, largest_of_layers(config, [](const auto& l) {
            return l.experts ? l.experts->scored() : 0;
          }));
    const int64_t deferred_cols = hidden_if(
        [](const LayerConfig& layer) { return layer.experts && layer.experts->deferred; });
    shape(deferred, DType::f32, tokens, deferred_cols);
    shape(last_deferred, DType::f32, limits.max_logits, config.output.none ? 0 : deferred_cols);
    shape(gate, DType::f32, tokens, largest_of_layers(config, [](const auto& l) {
            return static_cast<int64_t>(l.experts && l.experts->shared_gate);
          }));
    std::vector<int64_t> sizes;
    if (config.pooling) sizes.push_back(hidden);
    for (const DenseConfig& dense : dense_layers(config)) sizes.push_back(dense.size);
    vectors.resize(sizes.size());
    for (size_t n = 0; n < sizes.size(); ++n) {
      shape(vectors[n], DType::f32, limits.max_logits, sizes[n]);
    }
    token_vectors.resize(config.pooling ? static_cast<size_t>(config.pooling->dense_before) : 0);
    for (size_t n = 0; n < token_vectors.size(); ++n) {
      shape(token_vectors[n], DType::f32, tokens, config.pooling->dense[n].size);
    }
    shape(layer_inputs, DType::f32, tokens, config.layer_inputs_dim());
    shape(projected_inputs, act, tokens, config.layer_inputs_dim());
    shape(last_input, DType::f32, limits.max_logits, config.layer_inputs.size);
    shape(input_gate, act, tokens, config.layer_inputs.size);
    shape(last, DType::f32, limits.max_logits, config.output.none ? 0 : config.stream_dim());
    shape(last_normed, last_type(act, config.output_format), limits.max_logits,
          config.output.none ? 0 : hidden);
  }
};

inline size_t matrix_bytes(const Matrix& matrix) {
  return static_cast<size_t>(matrix.rows * matrix.cols) * dtype_size(matrix.dtype);
}

}  // namespace faststream
