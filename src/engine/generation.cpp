#include "engine/generation.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "engine/runner.h"
#include "support/bit_mask.h"
#include "support/error.h"
#include "support/utf8.h"

namespace faststream {
namespace {

bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

bool begins_text(const GenerationRules& rules, const Tokenizer& tokenizer) {
  if (!rules.source.empty()) return true;
  const std::vector<int32_t>& prompt = rules.prompt;
  return prompt.size() == 1 && tokenizer.config().bos == std::optional<int32_t>(prompt.front());
}

// Appends the last tokens of those of `never` of which the others are the last of `tokens`.
void add_never(std::span<const int32_t> tokens, const std::vector<std::vector<int32_t>>& never,
               std::vector<int32_t>& to) {
  for (const std::vector<int32_t>& row : never) {
    const std::span<const int32_t> before = std::span(row).first(row.size() - 1);
    if (tokens.size() < before.size()) continue;
    if (std::ranges::equal(tokens.last(before.size()), before)) to.push_back(row.back());
  }
}

// Appends the tokens after which the last n tokens would stand in `tokens` before.
void add_repetitions(std::span<const int32_t> tokens, size_t n, std::vector<int32_t>& to) {
  if (tokens.size() < n) return;
  const std::span<const int32_t> tail = tokens.last(n - 1);
  for (size_t i = 0; i + n <= tokens.size(); ++i) {
    const std::span<const int32_t> gram = tokens.subspan(i, n);
    if (std::equal(tail.begin(), tail.end(), gram.begin())) to.push_back(gram.back());
  }
}

bool contains(const std::vector<int32_t>& tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

std::vector<int32_t> ending_tokens(const GenerationRules& rules, const Tokenizer& tokenizer) {
  std::vector<int32_t> ends = rules.stop_tokens;
  ends.insert(ends.end(), rules.end_tokens.begin(), rules.end_tokens.end());
  const std::vector<int32_t>& eos = tokenizer.config().eos;
  if (!rules.ignore_eos) ends.insert(ends.end(), eos.begin(), eos.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

Generation::Generation(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample)
    : rules_(&rules),
      sample_(sample),
      tokenizer_(&tokenizer),
      tokens_(rules.prompt),
      detokenizer_(tokenizer, begins_text(rules, tokenizer), rules.shown),
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
  if (rules.rule) matcher_.emplace(rules.rule);
  forbid();
}

SamplingRow Generation::sampling_row() const {
  SamplingRow row =
      faststream::sampling_row(rules_->sampling, static_cast<int64_t>(tokens_.size()), sample_);
  row.n_logprobs = rules_->logprobs;
  row.renormalizes = rules_->renormalizes;
  row.edits = row_edits_.empty() ? edits_ : row_edits_;
  if (matcher_) {
    if (mask_.empty()) make_mask(*matcher_, output_.tokens.empty(), mask_);
    row.mask = mask_;
  }
  return row;
}

SamplingRow Generation::sampling_row_after(std::span<const int32_t> ahead) const {
  SamplingRow row = sampling_row();
  row.position += ahead.size();
  if (matcher_) row.mask = mask_after(ahead);
  if (!has_penalties(rules_->sampling)) return row;
  if (edits_ahead_.size() < ahead.size()) edits_ahead_.resize(ahead.size());
  std::vector<LogitEdit>& edits = edits_ahead_[ahead.size() - 1];
  edits = edits_;
  for (size_t n = 1; n <= ahead.size(); ++n) {
    const int32_t token = ahead[n - 1];
    const auto known = uses_.find(token);
    const Use use = known == uses_.end() ? Use{} : known->second;
    auto edit = std::ranges::find(edits, token, &LogitEdit::token);
    if (edit == edits.end()) edit = edits.insert(edit, {.token = token});
    const auto n_ahead = static_cast<int32_t>(std::ranges::count(ahead.first(n), token));
    penalize(*edit, use.bias, use.count + n_ahead);
  }
  row.edits = edits;
  return row;
}

std::optional<SamplingRow> Generation::sampling_row_ahead(int32_t n) const {
  if (tokens_ahead() < n || matcher_ || has_penalties(rules_->sampling)) return std::nullopt;
  SamplingRow row = sampling_row();
  row.position += static_cast<uint64_t>(n);
  return row;
}

int64_t Generation::tokens_ahead() const {
  if (rules_->sampling.no_repeat_ngram > 0 || !rules_->never.empty() || rules_->first ||
      rules_->last) {
    return 0;
  }
  // Else a rule might leave no token to draw after some that are not drawn in the end.
  if (rules_->rule && !rules_->rule->trie().has_all_bytes()) return 0;
  const auto n_tokens = static_cast<int64_t>(output_.tokens.size());
  const int64_t room = rules_->max_new_tokens() - n_tokens - 1;
  // Before it may end, its rules have more edits.
  const int64_t no_end = rules_->min_tokens - n_tokens;
  if (no_end <= 0) return room;
  return has_penalties(rules_->sampling) ? 0 : std::min(room, no_end - 1);
}

std::span<const int32_t> Generation::fitting(std::span<const int32_t> ahead) const {
  if (!matcher_) return ahead;
  rules::RuleMatcher matcher = *matcher_;
  size_t n = 0;
  try {
    while (n < ahead.size() && matcher.accept(ahead[n])) ++n;
  } catch (const Error&) {  // too ambiguous there
  }
  return ahead.first(n);
}

std::vector<int32_t> Generation::forced_tokens(int64_t most) const try {
  if (!matcher_ || most <= 0) return {};
  return matcher_->forced_tokens(static_cast<size_t>(most));
} catch (const Error&) {  // too ambiguous there
  return {};
}

float Generation::unedited(LogProbability edited, float renormalization) const {
  const float value = edited.value - renormalization;
  const auto use = uses_.find(edited.token);
  if (use == uses_.end()) return value;
  const LogitEdit& edit = edits_[use->second.edit];
  return std::min((value - edit.bias) / edit.repetition, 0.0F);
}

bool Generation::is_end(int32_t token) const {
  return is_own_end(token) || contains(rules_->stop_tokens, token);
}

bool Generation::is_own_end(int32_t token) const {
  return (tokenizer_->is_eos(token) && !rules_->ignore_eos) || contains(rules_->end_tokens, token);
}

bool Generation::is_nearly_full() const {
  return static_cast<int64_t>(output_.tokens.size()) + 1 == rules_->max_new_tokens();
}

std::optional<int32_t> Generation::forced_token() const {
  if (rules_->first && output_.tokens.empty()) return rules_->first;
  if (rules_->last && is_nearly_full()) return rules_->last;
  return std::nullopt;
}

bool Generation::ends_with(int32_t token) const {
  if (is_end(token)) return true;
  if (rules_->stop.empty()) return false;
  Detokenizer text = detokenizer_;
  StopMatcher stop = stop_;
  stop.push(text.push(token));
  return stop.matched().has_value();
}

void Generation::accept(SampledToken&& sampled) {
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
  if (matcher_ && !is_end(token)) follow_rule(token);
  if (finished_) {
    // Nothing can follow by the rule.
  } else if (is_end(token)) {
    end(is_own_end(token) ? FinishReason::eos : FinishReason::stop_token);
  } else {
    if (has_penalties(rules_->sampling)) count(token);
    if (static_cast<int64_t>(output_.tokens.size()) == rules_->max_tokens) {
      end(FinishReason::length);
    } else if (static_cast<int64_t>(tokens_.size()) == rules_->context) {
      end(FinishReason::context);
    }
  }
  if (!rules_->stop.empty()) write_tokens();
  forbid();
}

std::string_view Generation::write() {
  write_tokens();
  const size_t printed = std::exchange(n_printed_, output_.text.size());
  return std::string_view(output_.text).substr(printed);
}

void Generation::write_tokens() {
  if (n_written_ == output_.tokens.size()) return;
  while (n_written_ < output_.tokens.size()) {
    const int32_t token = output_.tokens[n_written_++];
    if (!is_end(token) || rules_->shown.all) emit(detokenizer_.push(token));
  }
  if (finished_) close();
}

// The text is over, unless a stop string ended it before.
void Generation::close() {
  emit(detokenizer_.finish());
  if (!stop_.matched()) append(stop_.finish());
}

void Generation::emit(std::string_view text) {
  append(stop_.push(text));
  if (!stop_.matched()) return;
  end(FinishReason::stop_string);
  output_.stop = *stop_.matched();
}

// After the stop strings, which may begin with whitespace.
void Generation::append(std::string_view text) {
  if (rules_->strip_start && output_.text.empty()) text = strip_left(text);
  output_.text += text;
}

void Generation::end(FinishReason reason) {
  output_.finish_reason = reason;
  finished_ = true;
}

void Generation::finish(FinishReason reason) {
  if (finished_) return;
  write_tokens();
  end(reason);
  close();
}

void Generation::count(int32_t token) {
  const auto [found, is_new] = uses_.try_emplace(token, Use{.edit = edits_.size()});
  Use& use = found->second;
  if (is_new) edits_.push_back({.token = token});
  penalize(edits_[use.edit], use.bias, ++use.count);
}

// For a token that is so often in the answer.
void Generation::penalize(LogitEdit& edit, float bias, int32_t count) const {
  const SamplingParams& params = rules_->sampling;
  edit.repetition = params.repetition_penalty;
  edit.bias = bias - params.presence_penalty - params.frequency_penalty * static_cast<float>(count);
}

void Generation::follow_rule(int32_t token) {
  mask_.clear();
  if (!matcher_->accept(token)) {
    throw Error("token " + std::to_string(token) + " does not fit the rule of output");
  }
  if (matcher_->complete() && !matcher_->goes_on()) end(FinishReason::eos);
}

void Generation::make_mask(const rules::RuleMatcher& matcher, bool is_first,
                           std::vector<uint32_t>& mask) const {
  mask.resize(matcher.words());
  matcher.mask(mask);
  const TokenizerConfig& config = tokenizer_->config();
  // The text would be without the space that its first token begins with.
  if (is_first && !config.keep_leading_space && begins_text(*rules_, *tokenizer_)) {
    rules_->rule->trie().for_each_with(' ', [&](int32_t token) { clear_bit(mask, token); });
  }
  for (const int32_t token : rules_->end_tokens) clear_bit(mask, token);
  if (matcher.complete()) {
    for (const int32_t token : ending_tokens(*rules_, *tokenizer_)) set_bit(mask, token);
  }
  if (std::ranges::all_of(mask, [](uint32_t w) { return w == 0; })) {
    mask.clear();
    throw Error("no token of the model's fits the rule of output after the text so far");
  }
}

// None where these do not fit.
std::span<const uint32_t> Generation::mask_after(std::span<const int32_t> ahead) const {
  rules::RuleMatcher matcher = *matcher_;
  const auto accepts = [&](int32_t token) { return matcher.accept(token); };
  if (!std::ranges::all_of(ahead, accepts)) return {};
  if (!matcher.goes_on() && matcher.complete()) return {};  // nothing is drawn there
  if (masks_ahead_.size() < ahead.size()) masks_ahead_.resize(ahead.size());
  std::vector<uint32_t>& mask = masks_ahead_[ahead.size() - 1];
  make_mask(matcher, false, mask);
  return mask;
}

// Notes what may not come next.
void Generation::forbid() {
  std::vector<int32_t> forbidden;
  if (static_cast<int64_t>(output_.tokens.size()) < rules_->min_tokens) {
    forbidden = ending_tokens(*rules_, *tokenizer_);
  }
  if (rules_->sampling.no_repeat_ngram > 0) {
    add_repetitions(tokens_, static_cast<size_t>(rules_->sampling.no_repeat_ngram), forbidden);
  }
  add_never(tokens_, rules_->never, forbidden);
  row_edits_.clear();
  if (forbidden.empty()) return;
  std::sort(forbidden.begin(), forbidden.end());
  forbidden.erase(std::unique(forbidden.begin(), forbidden.end()), forbidden.end());
  row_edits_ = edits_;
  for (const int32_t token : forbidden) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    const auto use = uses_.find(token);
    if (use == uses_.end()) {
      row_edits_.push_back({.token = token, .bias = kNever});
    } else {
      row_edits_[use->second.edit].bias = kNever;
    }
  }
}

SampleGroup::SampleGroup(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample,
                         Speculation::Kind speculation)
    : text_(rules, tokenizer, sample), speculation_(speculation) {
  if (speculation == Speculation::Kind::lookup) lookup_.emplace(rules.prompt.size());
}

bool SampleGroup::propose(int32_t n) {
  if (!forced_.empty()) {
    suppose(std::span(forced_).first(static_cast<size_t>(n)));
  } else if (lookup_) {
    suppose(lookup_->propose(text_.tokens(), n));
  } else {
    return false;
  }
  return true;
}

void SampleGroup::suppose(std::span<const int32_t> tokens) {
  const std::span<const int32_t> fitting = text_.fitting(tokens);
  proposed_.assign(fitting.begin(), fitting.end());
}

ProposalOffer SampleGroup::offer(CommonRates& common) {
  using enum Speculation::Kind;
  note(common);
  proposed_.clear();  // of a step before, which a drafter need not take the place of
  const auto most = static_cast<int32_t>(std::min<int64_t>(text_.tokens_ahead(), kMostProposed));
  if (most <= 0 || speculation_ == off) return {};
  if (text_.rules().rule) {
    forced_ = text_.forced_tokens(most);
    forced_rate_.age(common.forced);
    if (!forced_.empty()) {
      return {.most = static_cast<int32_t>(forced_.size()),
              .acceptance = forced_rate_.value(common.forced)};
    }
  }
  if (lookup_) {
    lookup_->read(text_.tokens(), common);
    return lookup_->offer(most, common);
  }
  draft_rate_.age(common.draft);
  return {.most = most, .acceptance = draft_rate_.value(common.draft), .is_draft = true};
}

ProposalOffer SampleGroup::offer_ahead(CommonRates& common) {
  note(common);
  const auto most =
      static_cast<int32_t>(std::min<int64_t>(text_.tokens_ahead() - 1, kMostProposed));
  if (most <= 0 || speculation_ == Speculation::Kind::off || text_.rules().rule) return {};
  if (lookup_) {
    lookup_->read(text_.tokens(), common);
    return lookup_->offer_ahead(most, common);
  }
  return {.most = most, .acceptance = draft_rate_.value(common.draft), .is_draft = true};
}

// What became of proposals since the last offer.
void SampleGroup::note(CommonRates& common) {
  if (n_tried_ == 0) return;
  const auto n_tried = static_cast<int32_t>(std::exchange(n_tried_, 0));
  const auto n_fitting = static_cast<int32_t>(n_fitting_);
  if (!forced_.empty()) {
    forced_rate_.note(n_tried, n_fitting, common.forced);
  } else if (lookup_) {
    lookup_->note(n_tried, n_fitting, common);
  } else {
    draft_rate_.note(n_tried, n_fitting, common.draft);
  }
}

std::span<const int32_t> SampleGroup::accept(std::span<SampledToken> sampled) {
  static constexpr int32_t kItself = 0;
  if (const auto forced = text_.forced_token()) {
    sampled.front().token = *forced;
    sampled.front().logprob = 0;
  }
  const size_t n_proposed = sampled.size() - 1;
  size_t n_fitting = 0;
  bool fits = true;
  for (size_t i = 0; i < sampled.size() && fits && !text_.finished(); ++i) {
    fits = i < n_proposed && sampled[i].token == proposed_[i];
    n_fitting += fits ? 1 : 0;
    text_.accept(std::move(sampled[i]));
  }
  if (n_proposed > 0) {
    n_tried_ = text_.finished() && fits ? n_fitting : n_proposed;
    n_fitting_ = n_fitting;
  }
  return {&kItself, 1};
}

std::vector<Output> SampleGroup::take_outputs() {
  (void)text_.write();
  std::vector<Output> outputs;
  outputs.push_back(std::move(text_.output()));
  return outputs;
}

}  // namespace faststream
