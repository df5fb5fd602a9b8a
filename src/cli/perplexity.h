// How well a model predicts a text, and how far it is from another one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace faststream::cli {

/// How far a model's next-token distributions are from a reference's.
struct Divergence {
  double mean_kl = 0;  ///< Kullback-Leibler divergence D(reference ‖ model) in nats, mean
  double kl_99th = 0;  ///< its 99th percentile
  double top_token_agrees = 0;  ///< share of positions where the likeliest tokens are the same
  double reference_perplexity = 0;
};

struct Perplexity {
  double value = 0;           ///< exp of the mean negative log-likelihood of a token
  double standard_error = 0;  ///< of value
  int64_t n_tokens = 0;       ///< predicted tokens
  double seconds = 0;         ///< in which the model computed their logits, without the reference
  std::optional<Divergence> divergence;
};

/// Measures `model` on a text, and against `reference` unless that is null. The text's tokens are
/// cut into windows of info.context tokens (the smaller of the two contexts), each begun by the
/// begin-of-sequence token if the model has one; every token of a window is predicted from those
/// before it there. Throws Error when the text is too short or the two models' tokens differ.
/// `between` is called between steps; what it throws ends the measurement.
Perplexity measure_perplexity(LoadedModel& model, LoadedModel* reference, std::string_view text,
                              const std::function<void()>& between);

struct PerplexityOptions {
  std::string model;
  std::string text_file;
  std::string against;  ///< another model file, or empty
  EngineOptions engine;
};

/// Measures and prints to stdout. Throws Error, UsageError or Interrupted.
void perplexity_command(const PerplexityOptions& options);

}  // namespace faststream::cli
