// How well a model predicts a text, and how far it is from another one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/request.h"

namespace faststream {

/// Tokens of a step of the measurement, the most rows of logits that it asks a model for.
inline constexpr int32_t kPerplexityStepTokens = 256;

/// How far a model's next-token distributions are from a reference's.
struct Divergence {
  double mean_kl = 0;  ///< Kullback-Leibler divergence D(reference ‖ model) in nats, mean
  double kl_99th = 0;  ///< its 99th percentile
  double top_token_agrees = 0;  ///< share of positions where the likeliest tokens are the same
  double reference_perplexity = 0;
};

struct Perplexity {
  double value = 0;           ///< exp of the mean negative log-likelihood of a token
  double standard_error = 0;  ///< of value; NaN of one token
  int64_t n_tokens = 0;       ///< predicted tokens
  double seconds = 0;         ///< in which the model computed their logits, without the reference
  std::optional<Divergence> divergence;
};

/// What the model gives to each of the tokens, of at most info.context, after those before it, and
/// to the `n_top` likeliest in its place: [tokens], the first's as Result has it. `adapter`: as
/// TextKind has it. `keeps`: the caches know the text afterwards. Throws Error when a token is out
/// of range, or the KV cache has no room for them.
std::vector<PositionLogprobs> score_tokens(LoadedModel& model, std::span<const int32_t> tokens,
                                           int32_t adapter, int32_t n_top, bool keeps);

/// The tokens of a text in windows of at most `context` tokens, of two at least, each begun by the
/// begin-of-sequence token if the tokenizer has one. Throws Error when the text or the context is
/// too short for any.
std::vector<std::vector<int32_t>> text_windows(const Tokenizer& tokenizer, std::string_view text,
                                               int64_t context);

/// Measures `model` on a text, and against `reference` unless that is null. The text is cut
/// into text_windows() of info.context tokens (the smaller of the two contexts); every token of a
/// window but the first is predicted from those before it there. Throws Error when the text is too
/// short or the two models' tokens differ. `between` is called between steps; what it throws ends
/// the measurement.
Perplexity measure_perplexity(LoadedModel& model, LoadedModel* reference, std::string_view text,
                              const std::function<void()>& between);

}  // namespace faststream
