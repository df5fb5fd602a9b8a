// How a layer's tokens learn of others of their text: the kinds of Mixer (models/config.h), each in
// a file of its own, which has its operations in the order of its paper.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "models/activations.h"
#include "models/decoder_weights.h"
#include "models/pass.h"
#include "models/stream.h"
#include "models/tables.h"

namespace faststream {

/// out [rows, hidden] f32 = or += what product(output, out) gives, or, where ranks share it, what
/// it gives on all of them together.
template <typename Product>
void add_up(const Pass& pass, bool is_shared, OutputMode output, const Matrix& out,
            Product product) {
  if (!is_shared) return product(output, out);
  const Matrix share = pass.memory.share.first_rows(out.rows);
  product(OutputMode::share, share);
  pass.backend.sum_over_ranks(share, output, out);
}

/// Of the rope, or without columns where nothing rotates.
inline Matrix rotations(const Pass& pass, std::optional<size_t> rope) {
  if (rope) return pass.memory.cos_sin[*rope].first_rows(pass.batch.n_tokens);
  return {nullptr, DType::f32, pass.batch.n_tokens, 0};
}

/// Gives a mixer what it reads besides tensors.
void complete(AttentionWeights& attention, Backend& backend, Tables& tables);
inline void complete(LatentAttentionWeights& /*all in tensors*/, Backend&, Tables&) {}

void complete(DeltaNetWeights& mixer, Backend& backend, Tables& tables);
void complete(StateSpaceWeights& mixer, Backend& backend, Tables& tables);
void complete(ShortConvolutionWeights& mixer, Backend& backend, Tables& tables);
void complete(SelectiveScanWeights& mixer, Backend& backend, Tables& tables);
void complete(LinearAttentionWeights& mixer, Backend& backend, Tables& tables);

/// Mixes what `input` says, [tokens, hidden], and leaves the last product to the caller.
LastProduct mix(const Pass& pass, const AttentionWeights& attention, Input& input);
LastProduct mix(const Pass& pass, const LatentAttentionWeights& attention, Input& input);
LastProduct mix(const Pass& pass, const DeltaNetWeights& mixer, Input& input);
LastProduct mix(const Pass& pass, const StateSpaceWeights& mixer, Input& input);
LastProduct mix(const Pass& pass, const ShortConvolutionWeights& mixer, Input& input);
LastProduct mix(const Pass& pass, const SelectiveScanWeights& mixer, Input& input);
LastProduct mix(const Pass& pass, const LinearAttentionWeights& mixer, Input& input);

inline LastProduct mix(const Pass& pass, const MixerWeights& weights, Input& input) {
  return std::visit([&](const auto& mixer) { return mix(pass, mixer, input); }, weights);
}

/// What all mixers of a layer give together: out [tokens, hidden] f32 = or += it. Where there are
/// several, the input is ready.
inline void mix(const Pass& pass, const std::vector<MixerWeights>& mixers, const Input& input,
                OutputMode output, const Matrix& out) {
  if (mixers.size() > 1) output = kept(output);
  for (const MixerWeights& weights : mixers) {
    Input own = input;
    mix(pass, weights, own)(output, out);
    output = OutputMode::add;
  }
}

/// The same of cross attention, whose keys and values read_source() has stored.
LastProduct attend_to_source(const Pass& pass, const CrossAttentionWeights& cross, Input& input);
/// Stores the keys and values of what the encoder gave for the batch, [tokens, encoder's hidden].
void read_source(const Pass& pass, const CrossAttentionWeights& cross, Input& encoded);

}  // namespace faststream
