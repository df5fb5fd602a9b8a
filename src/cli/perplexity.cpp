#include "cli/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "cli/input.h"
#include "program/interrupt.h"
#include "support/error.h"

namespace faststream::cli {
namespace {

constexpr int32_t kStepTokens = 256;  // that a step processes; bounds the memory of the logits

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
    const double variance = (sum_of_squares - sum * sum / n) / std::max(n - 1, 1.0);
    return std::sqrt(std::max(variance, 0.0) / n);
  }
};

// The text as windows of at most `context` tokens. A window's first token is given, not predicted.
std::vector<std::vector<int32_t>> cut(const std::vector<int32_t>& tokens,
                                      std::optional<int32_t> bos, size_t context) {
  std::vector<std::vector<int32_t>> windows;
  for (size_t first = 0; first < tokens.size();) {
    std::vector<int32_t> window;
    if (bos) window.push_back(*bos);
    const size_t count = std::min(context - window.size(), tokens.size() - first);
    window.insert(window.end(), tokens.begin() + static_cast<ptrdiff_t>(first),
                  tokens.begin() + static_cast<ptrdiff_t>(first + count));
    if (window.size() >= 2) windows.push_back(std::move(window));
    first += count;
  }
  return windows;
}

class Measurement {
 public:
  Measurement(LoadedModel& model, LoadedModel* reference) : model_(model), reference_(reference) {}

  void run(const std::vector<int32_t>& window, const std::function<void()>& between) {
    const size_t predicted = window.size() - 1;
    const auto length = static_cast<int64_t>(predicted);
    Sequence sequence = model_.runner->begin(length);
    Sequence reference_sequence;
    if (reference_ != nullptr) reference_sequence = reference_->runner->begin(length);
    for (size_t first = 0; first < predicted; first += kStepTokens) {
      const auto part =
          std::span(window).subspan(first, std::min<size_t>(kStepTokens, predicted - first));
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
  static std::vector<float> step(LoadedModel& model, Sequence& sequence,
                                 std::span<const int32_t> part) {
    model.runner->step({{{&sequence, part, NewTokens::Logits::all}}});
    return model.runner->logits();
  }

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

Perplexity measure_perplexity(LoadedModel& model, LoadedModel* reference, std::string_view text,
                              const std::function<void()>& between) {
  const std::vector<int32_t> tokens = model.tokenizer->encode(text, false);
  int64_t context = model.info.context;
  if (reference != nullptr) {
    context = std::min(context, reference->info.context);
    if (reference->config.vocab != model.config.vocab ||
        reference->tokenizer->encode(text, false) != tokens) {
      throw Error(reference->file.name() + ": has another vocabulary than " + model.file.name() +
                  "; only models with the same tokens can be compared");
    }
  }
  const TokenizerConfig& tokenizer = model.tokenizer->config();
  const auto bos = tokenizer.adds_bos() ? tokenizer.bos : std::nullopt;
  if (context < 3) throw Error("a context of 3 tokens or more is needed; give a larger --context");
  const auto windows = cut(tokens, bos, static_cast<size_t>(context));
  if (windows.empty()) throw Error("the text has no token to predict; give a longer one");

  Measurement measurement(model, reference);
  for (const std::vector<int32_t>& window : windows) measurement.run(window, between);
  return measurement.result();
}

void perplexity_command(const PerplexityOptions& options) {
  catch_interrupts();
  const std::string text = read_text_file(options.text_file, "--perplexity");
  EngineOptions engine = options.engine;
  engine.slots = 1;
  engine.check_interrupted = check_interrupted;
  LoadedModel model(options.model, engine, kStepTokens);
  if (model.answers) {
    throw Error(model.file.name() +
                ": answers to its prompts; --perplexity is of models that continue them");
  }
  std::optional<LoadedModel> reference;
  if (!options.against.empty()) {
    engine.kv = {};  // the truth
    reference.emplace(options.against, engine, kStepTokens);
  }
  std::fprintf(stderr, "device: %s\n", model.info.device.c_str());
  const Perplexity result =
      measure_perplexity(model, reference ? &*reference : nullptr, text, check_interrupted);

  if (result.n_tokens == 1) {
    std::printf("perplexity            %.6g (1 token)\n", result.value);
  } else {
    std::printf("perplexity            %.6g ± %.2g (%lld tokens)\n", result.value,
                result.standard_error, static_cast<long long>(result.n_tokens));
  }
  std::printf("speed                 %.1f tokens/s\n",
              static_cast<double>(result.n_tokens) / result.seconds);
  if (!result.divergence) return;
  const Divergence& divergence = *result.divergence;
  std::printf("reference perplexity  %.6g (ratio %.6f)\n", divergence.reference_perplexity,
              result.value / divergence.reference_perplexity);
  std::printf("KL divergence         mean %.3g, 99th percentile %.3g nats\n", divergence.mean_kl,
              divergence.kl_99th);
  std::printf("top token agrees      %.3f %%\n", 100 * divergence.top_token_agrees);
}

}  // namespace faststream::cli
