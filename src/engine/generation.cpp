#include "engine/generation.h"

#include <algorithm>

#include "support/utf8.h"

namespace faststream {
namespace {

bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

bool begins_text(const std::vector<int32_t>& prompt, const Tokenizer& tokenizer) {
  return prompt.size() == 1 && tokenizer.config().bos == std::optional<int32_t>(prompt.front());
}

}  // namespace

Generation::Generation(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample)
    : rules_(&rules),
      sample_(sample),
      tokenizer_(&tokenizer),
      tokens_(rules.prompt),
      detokenizer_(tokenizer, begins_text(rules.prompt, tokenizer), rules.show_special),
      stop_(rules.stop) {
  for (const LogitBias& bias : rules.sampling.logit_bias) {
    uses_[bias.token] = {.edit = edits_.size(), .bias = bias.bias};
    edits_.push_back({.token = bias.token, .bias = bias.bias});
  }
  if (rules.sampling.repetition_penalty != 1) {
    for (const int32_t token : rules.prompt) {
      const auto [use, is_new] = uses_.try_emplace(token, Use{.edit = edits_.size()});
      if (is_new) edits_.push_back({.token = token});
      edits_[use->second.edit].repetition = rules.sampling.repetition_penalty;
    }
  }
}

SamplingRow Generation::sampling_row() const {
  SamplingRow row = faststream::sampling_row(rules_->sampling, sequence.n_cached, sample_);
  row.n_logprobs = rules_->logprobs;
  row.edits = edits_;
  return row;
}

bool Generation::ends_text(int32_t token) const {
  const auto& stops = rules_->stop_tokens;
  return (tokenizer_->is_eos(token) && !rules_->ignore_eos) ||
         std::find(stops.begin(), stops.end(), token) != stops.end();
}

std::string_view Generation::accept(SampledToken&& sampled) {
  const int32_t token = sampled.token;
  tokens_.push_back(token);
  output_.tokens.push_back(token);
  if (rules_->logprobs >= 0) {
    sum_logprob_ += static_cast<double>(sampled.logprob);
    output_.mean_logprob = sum_logprob_ / static_cast<double>(output_.tokens.size());
    PositionLogprobs position{.chosen = {token, sampled.logprob}};
    for (const LogProbability& p : sampled.top) position.top.push_back({p.token, p.value});
    output_.logprobs.push_back(std::move(position));
  }
  printed_ = output_.text.size();
  if (ends_text(token)) {
    if (rules_->show_special) emit(detokenizer_.push(token));
    finish(FinishReason::eos);
  } else {
    emit(detokenizer_.push(token));
    if (has_penalties(rules_->sampling)) count(token);
    if (static_cast<int64_t>(output_.tokens.size()) == rules_->max_tokens) {
      finish(FinishReason::length);
    } else if (static_cast<int64_t>(tokens_.size()) == rules_->context) {
      finish(FinishReason::context);
    }
  }
  return std::string_view(output_.text).substr(printed_);
}

void Generation::emit(std::string_view text) {
  if (finished_) return;
  append(stop_.push(text));
  if (!stop_.matched()) return;
  finished_ = true;
  output_.finish_reason = FinishReason::stop_string;
  output_.stop = *stop_.matched();
}

// After the stop strings, which may begin with whitespace.
void Generation::append(std::string_view text) {
  if (rules_->strip_start && output_.text.empty()) text = strip_left(text);
  output_.text += text;
}

void Generation::finish(FinishReason reason) {
  if (finished_) return;
  emit(detokenizer_.finish());  // may complete a stop string
  if (finished_) return;
  append(stop_.finish());
  output_.finish_reason = reason;
  finished_ = true;
}

void Generation::count(int32_t token) {
  const SamplingParams& params = rules_->sampling;
  const auto [found, is_new] = uses_.try_emplace(token, Use{.edit = edits_.size()});
  Use& use = found->second;
  if (is_new) edits_.push_back({.token = token});
  ++use.count;
  edits_[use.edit].repetition = params.repetition_penalty;
  edits_[use.edit].bias =
      use.bias - params.presence_penalty - params.frequency_penalty * static_cast<float>(use.count);
}

}  // namespace faststream
