#include "engine/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "support/error.h"

namespace faststream {
namespace {

// The natural logarithms of softmax(logits), in double.
void log_softmax(const LoadedModel& model, std::span<const float> logits,
                 std::vector<double>& out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit} - largest);
  const double shift = largest + std::log(total);
  out.resize(logits.size());
  std::transform(logits.begin(), logits.end(), out.begin(),
                 [shift](float logit) { return logit - shift; });
  if (!std::isfinite(shift)) {
    throw Error(model.file.name() + ": the model computes NaN or infinity; " + kOverflowAdvice);
  }
}

size_t likeliest(const std::vector<double>& log_probabilities) {
  return static_cast<size_t>(std::max_element(log_probabilities.begin(), log_probabilities.end()) -
                             log_probabilities.begin());
}

// Processes the next tokens of a text. Texts that an engine remembers make room for them.
void process(LoadedModel& model, Sequence& sequence, std::span<const int32_t> part) {
  SequenceCaches& caches = model.runner->caches();
  const auto n_tokens = static_cast<int64_t>(part.size());
  (void)caches.make_room(caches.missing(sequence, int64_t{sequence.n_cached} + n_tokens));
  model.runner->step({{{&sequence, part, NewTokens::Logits::all}}});
}

// The logits [part.size(), vocab] after each token of the part.
std::vector<float> step(LoadedModel& model, Sequence& sequence, std::span<const int32_t> part) {
  process(model, sequence, part);
  return model.runner->logits();
}

// How many of so many tokens a step takes. A single one is not left: its rounding is another.
size_t piece_tokens(const BatchLimits& limits, size_t n_left) {
  const auto most = static_cast<size_t>(std::min(limits.max_logits, limits.max_tokens));
  const size_t n = std::min(most, n_left);
  return n_left - n == 1 && n > 2 ? n - 1 : n;
}

// Has each of these tokens chosen from the last step's rows, which tells its probability.
void choose_tokens(Runner& runner, std::span<const int32_t> tokens, int32_t n_top,
                   std::vector<PositionLogprobs>& scores) {
  constexpr float kCertain = 1e30F;  // beside all logits
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<LogitEdit> edits;
  for (const int32_t token : tokens) edits.push_back({.token = token, .bias = kCertain});
  std::vector<SamplingRow> rules;
  for (const LogitEdit& edit : edits) {
    rules.push_back({.n_logprobs = n_top, .edits = {&edit, 1}});
  }
  std::vector<SampledToken> chosen;
  runner.sample(rules, chosen);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_possible = chosen[i].token == tokens[i];
    PositionLogprobs& score = scores.emplace_back();
    score.chosen = {tokens[i], is_possible ? chosen[i].logprob : kNever};
    for (const LogProbability& p : chosen[i].top) score.top.push_back({p.token, p.value});
  }
}

struct Statistics {
  double sum = 0;
  double sum_of_squares = 0;
  int64_t count = 0;

  void add(double value) {
    sum += value;
    sum_of_squares += value * value;
    ++count;
  }
  [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
  [[nodiscard]] double standard_error() const {
    const auto n = static_cast<double>(count);
    if (count < 2) return std::numeric_limits<double>::quiet_NaN();
    const double variance = (sum_of_squares - sum * sum / n) / (n - 1);
    return std::sqrt(std::max(variance, 0.0) / n);
  }
};

class Measurement {
 public:
  Measurement(LoadedModel& model, LoadedModel* reference) : model_(model), reference_(reference) {}

  void run(const std::vector<int32_t>& window, const std::function<void()>& between) {
    const size_t predicted = window.size() - 1;
    const auto length = static_cast<int64_t>(predicted);
    Sequence sequence = model_.runner->begin(length, model_.default_adapter());
    Sequence reference_sequence;
    if (reference_ != nullptr) reference_sequence = reference_->runner->begin(length);
    for (size_t first = 0; first < predicted; first += kPerplexityStepTokens) {
      const auto part = std::span(window).subspan(
          first, std::min<size_t>(kPerplexityStepTokens, predicted - first));
      const auto start = std::chrono::steady_clock::now();
      const std::vector<float> logits = step(model_, sequence, part);
      seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const std::vector<float> reference_logits = reference_ != nullptr
                                                      ? step(*reference_, reference_sequence, part)
                                                      : std::vector<float>();
      for (size_t i = 0; i < part.size(); ++i) {
        compare(logits, reference_logits, i, window[first + i + 1]);
      }
      between();
    }
    model_.runner->release(sequence);
    if (reference_ != nullptr) reference_->runner->release(reference_sequence);
  }

  [[nodiscard]] Perplexity result() {
    Perplexity result;
    result.value = std::exp(loss_.mean());
    result.standard_error = result.value * loss_.standard_error();  // the delta method
    result.n_tokens = loss_.count;
    result.seconds = seconds_;
    if (reference_ == nullptr) return result;
    std::sort(divergences_.begin(), divergences_.end());
    const auto n = static_cast<double>(divergences_.size());
    Divergence divergence;
    for (const double d : divergences_) divergence.mean_kl += d / n;
    divergence.kl_99th = divergences_[static_cast<size_t>(std::ceil(0.99 * n)) - 1];
    divergence.top_token_agrees = static_cast<double>(agreed_) / n;
    divergence.reference_perplexity = std::exp(reference_loss_.mean());
    result.divergence = divergence;
    return result;
  }

 private:
  // Row `row` of both models' logits, given which token really came next.
  void compare(const std::vector<float>& logits, const std::vector<float>& reference_logits,
               size_t row, int32_t next) {
    const auto vocab = static_cast<size_t>(model_.config.vocab);
    const auto token = static_cast<size_t>(next);
    log_softmax(model_, std::span(logits).subspan(row * vocab, vocab), ours_);
    loss_.add(-ours_[token]);
    if (reference_ == nullptr) return;
    log_softmax(*reference_, std::span(reference_logits).subspan(row * vocab, vocab), theirs_);
    reference_loss_.add(-theirs_[token]);
    double divergence = 0;
    for (size_t i = 0; i < vocab; ++i) {
      divergence += std::exp(theirs_[i]) * (theirs_[i] - ours_[i]);
    }
    divergences_.push_back(std::max(divergence, 0.0));  // rounding may make it -1e-17
    agreed_ += likeliest(ours_) == likeliest(theirs_) ? 1 : 0;
  }

  LoadedModel& model_;
  LoadedModel* reference_;
  Statistics loss_;
  Statistics reference_loss_;
  std::vector<double> divergences_;
  int64_t agreed_ = 0;
  double seconds_ = 0;
  std::vector<double> ours_;
  std::vector<double> theirs_;
};

}  // namespace

std::vector<PositionLogprobs> score_tokens(LoadedModel& model, std::span<const int32_t> tokens,
                                           int32_t adapter, int32_t n_top, bool keeps) {
  std::vector<PositionLogprobs> scores;
  if (tokens.empty()) return scores;
  constexpr float kNothingBefore = std::numeric_limits<float>::quiet_NaN();
  scores.push_back({.chosen = {tokens.front(), kNothingBefore}});
  Runner& runner = *model.runner;
  Sequence sequence = runner.begin(static_cast<int64_t>(tokens.size()), adapter);
  try {
    while (scores.size() < tokens.size()) {
      const size_t first = scores.size() - 1;
      const size_t n_tokens = piece_tokens(runner.limits().batch, tokens.size() - scores.size());
      process(model, sequence, tokens.subspan(first, n_tokens));
      choose_tokens(runner, tokens.subspan(first + 1, n_tokens), n_top, scores);
    }
    if (keeps) runner.caches().remember(tokens, sequence);
  } catch (...) {
    runner.release(sequence);
    throw;
  }
  runner.release(sequence);
  return scores;
}

std::vector<std::vector<int32_t>> text_windows(const Tokenizer& tokenizer, std::string_view text,
                                               int64_t context) {
  if (context < 3) throw Error("a context of 3 tokens or more is needed; give a larger --context");
  const std::vector<int32_t> tokens = tokenizer.encode(text, false);
  const TokenizerConfig& config = tokenizer.config();
  std::vector<int32_t> begin;
  if (config.adds_bos() && config.bos) begin.push_back(*config.bos);
  std::vector<std::vector<int32_t>> windows;
  for (size_t first = 0; first < tokens.size();) {
    std::vector<int32_t> window = begin;
    const size_t count =
        std::min(static_cast<size_t>(context) - window.size(), tokens.size() - first);
    window.insert(window.end(), tokens.begin() + static_cast<ptrdiff_t>(first),
                  tokens.begin() + static_cast<ptrdiff_t>(first + count));
    if (window.size() >= 2) windows.push_back(std::move(window));
    first += count;
  }
  if (windows.empty()) throw Error("the text has no token to predict; give a longer one");
  return windows;
}

Perplexity measure_perplexity(LoadedModel& model, LoadedModel* reference, std::string_view text,
                              const std::function<void()>& between) {
  int64_t context = model.info.context;
  if (reference != nullptr) {
    context = std::min(context, reference->info.context);
    if (reference->config.vocab != model.config.vocab ||
        reference->tokenizer->encode(text, false) != model.tokenizer->encode(text, false)) {
      throw Error(reference->file.name() + ": has another vocabulary than " + model.file.name() +
                  "; only models with the same tokens can be compared");
    }
  }
  const auto windows = text_windows(*model.tokenizer, text, context);
  Measurement measurement(model, reference);
  for (const std::vector<int32_t>& window : windows) measurement.run(window, between);
  return measurement.result();
}

}  // namespace faststream
