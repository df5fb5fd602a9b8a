// How the next token is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace faststream {

/// Added to the logit of a token.
struct LogitBias {
  int32_t token = 0;
  float bias = 0;  ///< -100 all but forbids the token, 100 all but forces it
};

/// Sampling parameters of one request. The same parameters, prompt and model give the same text,
/// whatever else runs beside it.
///
/// In this order: penalties and biases change logits; then the likeliest top_k tokens are kept;
/// probabilities are softmax(logit / temperature); of them top_p, then min_p keep the likeliest;
/// one is drawn, with random numbers that are a function of (seed, sample, position).
struct SamplingParams {
  float temperature = 0.8F;  ///< 0 is greedy; at most 100
  int32_t top_k = 40;        ///< keep the k most likely tokens; 0 keeps all
  float top_p = 0.95F;       ///< keep the most likely tokens that together reach p; 1 keeps all
  float min_p = 0;           ///< keep tokens at least min_p times as likely as the likeliest
  /// Divides positive logits, and multiplies negative ones, of tokens that are in the prompt or the
  /// answer (arXiv:1909.05858). 1: off.
  float repetition_penalty = 1;
  float presence_penalty = 0;   ///< subtracted from the logit of each token that is in the answer
  float frequency_penalty = 0;  ///< subtracted as often as the token is in the answer
  std::vector<LogitBias> logit_bias = {};
  /// No so many tokens in a row come twice in prompt and answer together; 0: they may.
  int32_t no_repeat_ngram = 0;
  std::optional<uint64_t> seed = {};  ///< absent: drawn at random, and told in the result
};

/// Throws UsageError when a bias is out of range or of no token of the model's, or a token has two.
void validate(std::span<const LogitBias> biases, int64_t vocab);

}  // namespace faststream
