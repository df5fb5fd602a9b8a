#include "engine/scheduling_policy.h"

#include <algorithm>
#include <utility>

#include "engine/entry_tokens.h"
#include "engine/stopwatch.h"

namespace faststream {
namespace {

double step_seconds(const SchedulerLimits& limits) {
  return limits.ends_together ? StepBudget::kBatchSeconds : StepBudget::kSeconds;
}

}  // namespace

std::span<const NewTokens> StepPlan::inputs_of(std::span<const Part> of) const {
  const size_t first = of.front().first_input;
  return std::span(inputs).subspan(first, of.back().first_input + of.back().n_inputs - first);
}

std::span<const PageCopy> StepPlan::copies_of(std::span<const Part> of) const {
  const size_t first = of.front().first_copy;
  return std::span(copies).subspan(first, of.back().first_copy + of.back().n_copies - first);
}

int32_t StepPlan::n_tokens(std::span<const Part> of, bool in_decode) const {
  int32_t n = 0;
  for (const Part& part : of) {
    if (part.is_decode != in_decode) continue;
    for (const NewTokens& input : inputs_of({&part, 1})) n += input.n_tokens();
  }
  return n;
}

int32_t StepPlan::n_proposed(std::span<const Part> of) const {
  int32_t n = 0;
  for (const Part& part : of) {
    for (const NewTokens& input : inputs_of({&part, 1})) {
      n += static_cast<int32_t>(input.proposed.size());
    }
  }
  return n;
}

bool SchedulingPolicy::Order::operator()(const Entry* a, const Entry* b) const {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

SchedulingPolicy::SchedulingPolicy(SequenceCaches& caches, const ModelConfig& config,
                                   const SchedulerLimits& limits, SequenceCaches::CopyPages copy)
    : caches_(caches),
      config_(config),
      limits_(limits),
      copy_(std::move(copy)),
      alone_(limits.first_tokens, limits.max_step_tokens, step_seconds(limits)),
      beside_(limits.first_tokens, limits.chunk, step_seconds(limits)) {
  running_.reserve(static_cast<size_t>(limits.slots));
}

SchedulingPolicy::~SchedulingPolicy() {
  for (Entry* entry : running_) {
    for (Sequence& sequence : entry->sequences) caches_.release(sequence);
  }
  caches_.forget_texts();
}

void SchedulingPolicy::add(Entry& entry) {
  if (!entry.has_tokens) {
    entry.n_prompt = static_cast<int32_t>(text_length(entry));
    entry.kind = {.rope_length = config_.rope_length(text_length(entry)),
                  .adapter = entry.group->adapter()};
  }
  waiting_.insert(&entry);
  may_admit_ = true;
  n_waiting_ += entry.group->width();
}

void SchedulingPolicy::remove(Entry& entry) {
  if (waiting_.erase(&entry) == 0) {
    leave(entry, true);
  } else {
    n_waiting_ -= entry.group->width();
  }
}

size_t SchedulingPolicy::n_turns() const {
  if (is_short_of_room_) return 1;
  return static_cast<size_t>(std::clamp(n_running_ / limits_.turn_slots, 1, limits_.turns));
}

void SchedulingPolicy::processed(const StepPlan& step, const Part& part) {
  if (step.is_followed) return;  // planning that said so
  Entry& entry = *part.entry;
  for (const NewTokens& input : step.inputs_of({&part, 1})) {
    if (!input.proposed.empty()) continue;  // until follow() knows how many stay
    caches_.commit(*input.sequence, input.n_tokens(), input.n_tokens());
    if (input.tokens.size() == 1 && entry.has_tokens) continue;
    counts_.prompt_tokens += input.n_tokens();
    remember(entry, static_cast<size_t>(input.sequence - entry.sequences.data()));
  }
}

// Whether there is a drafter that reads hidden states.
bool SchedulingPolicy::reads_states() const {
  return limits_.drafter != nullptr && limits_.drafter->reads_states();
}

bool SchedulingPolicy::reads_texts() const {
  return limits_.drafter != nullptr && !limits_.drafter->reads_states();
}

// Of more sequences that run than may have proposals a drafter need not know.
bool SchedulingPolicy::may_follow(const SequenceGroup& group) const {
  return reads_states() && n_running_ <= kMostSpeculating && group.width() == 1;
}

// Texts.
int32_t SchedulingPolicy::most_followed() const {
  return limits_.always_proposes ? kMostSpeculating : gate_.most_followed();
}

void SchedulingPolicy::tell_drafter(const StepPlan& step, std::span<const Part> parts) {
  if (!reads_states()) return;
  const bool has_states = wants_states(step.inputs_of(parts));
  std::vector<ProcessedTokens> processed;
  int32_t row = 0;
  for (const Part& part : parts) {
    const SequenceGroup* group = part.entry == nullptr ? nullptr : part.entry->group;
    for (const NewTokens& input : step.inputs_of({&part, 1})) {
      const int32_t n = input.n_tokens();
      const int32_t n_rows = has_states ? n : input.n_logits();
      if (group != nullptr && n_rows == n && input.with_states == has_states &&
          may_follow(*group)) {
        processed.push_back(
            {.group = group, .first = input.sequence->n_cached - n, .row = row, .n_tokens = n});
      }
      row += n_rows;
    }
  }
  if (processed.empty()) return;
  const Stopwatch watch;
  limits_.drafter->processed(processed, most_followed());
  const double seconds = watch.seconds();
  gate_.read_states(seconds);
  seconds_of_proposing_ += seconds;
}

void SchedulingPolicy::follow(const StepPlan& step, const Part& part, bool has_tokens,
                              std::span<const int32_t> parents) {
  Entry& entry = *part.entry;
  Outcome outcome{.entry = &entry};
  int32_t n_accepted = 1;
  for (const NewTokens& input : step.inputs_of({&part, 1})) {
    if (input.proposed.empty()) continue;
    // The last token of a text is not processed yet.
    Sequence& sequence = *input.sequence;
    const int32_t n_before = sequence.n_cached - input.n_tokens();
    n_accepted = static_cast<int32_t>(text_length(entry)) - 1 - n_before;
    caches_.commit(sequence, input.n_tokens(), n_accepted);
    counts_.proposed_tokens += input.n_tokens() - 1;
    counts_.accepted_tokens += n_accepted - 1;
  }
  outcome.n_cached = entry.sequences.front().n_cached;
  if (has_tokens) {
    counts_.generated_tokens += n_accepted;
    if (step.n_speculating > 0) gate_.accepted(step.n_speculating, n_accepted);
    entry.has_tokens = true;
    outcome.has_token = true;
    if (entry.group->finished()) {
      take_back(entry, step);
      leave(entry, true);
    } else {
      give_slots(entry, parents);
    }
  }
  outcomes_.push_back(std::move(outcome));
}

// Gives each of an entry's sequences the pages of the one that it goes on from.
void SchedulingPolicy::give_slots(Entry& entry, std::span<const int32_t> parents) {
  constexpr size_t kNowhere = SIZE_MAX;
  std::vector<Sequence>& sequences = entry.sequences;
  const size_t n_before = sequences.size();
  size_t n_themselves = 0;
  while (n_themselves < parents.size() && std::cmp_equal(parents[n_themselves], n_themselves)) {
    ++n_themselves;
  }
  // A step ahead has them where they are.
  if (n_themselves == n_before && parents.size() == n_before) return;
  std::vector<size_t> moved_to(n_before, kNowhere);
  sequences.reserve(n_before + parents.size());
  for (const int32_t parent : parents) {
    size_t& place = moved_to[static_cast<size_t>(parent)];
    if (place == kNowhere) {
      place = sequences.size();
      sequences.push_back(std::exchange(sequences[static_cast<size_t>(parent)], {}));
    } else {
      sequences.push_back(caches_.fork(sequences[place]));
    }
  }
  for (size_t i = 0; i < n_before; ++i) caches_.release(sequences[i]);
  sequences.erase(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(n_before));
}

// Has the caches keep what sequence i of an entry has in them.
void SchedulingPolicy::remember(Entry& entry, size_t i) {
  if (limits_.prefix_sharing) caches_.remember(wanted_tokens(entry, i), entry.sequences[i]);
}

// Takes an entry out of its slots; `keep_texts` for those who have the same prefix.
void SchedulingPolicy::leave(Entry& entry, bool keep_texts) {
  // A group that has ended no longer has all its sequences.
  const bool is_whole = entry.sequences.size() <= entry.group->n_sequences();
  for (size_t i = 0; i < entry.sequences.size() && keep_texts && is_whole; ++i) {
    remember(entry, i);
  }
  for (Sequence& sequence : entry.sequences) caches_.release(sequence);
  entry.sequences.clear();
  if (limits_.drafter != nullptr) limits_.drafter->forget(*entry.group);
  entry.step = nullptr;
  running_.erase(std::ranges::find(running_, &entry));
  n_running_ -= entry.group->width();
  may_admit_ = true;
}

void SchedulingPolicy::fail(Entry& entry, std::string_view error, bool is_of_device) {
  leave(entry, false);
  outcomes_.push_back({.entry = &entry, .error = std::string(error), .is_of_device = is_of_device});
}

void SchedulingPolicy::fail(const StepPlan& step, const Part& part, std::string_view error,
                            bool is_of_device) {
  take_back(*part.entry, step);
  fail(*part.entry, error, is_of_device);
}

// Takes an entry out of the step that follows the one that has ended, if it is in it.
void SchedulingPolicy::take_back(Entry& entry, const StepPlan& ended) {
  if (entry.step == nullptr || entry.step == &ended) return;
  StepPlan& ahead = *entry.step;
  const auto part = std::ranges::find(ahead.parts, &entry, &Part::entry);
  if (part == ahead.parts.end()) return;
  for (const NewTokens& input : ahead.inputs_of({&*part, 1})) {
    caches_.abandon(*input.sequence, input.n_tokens());
  }
  part->entry = nullptr;
}

void SchedulingPolicy::begin_again(const StepPlan& step) {
  for (const Part& part : step.parts) {
    if (part.entry == nullptr) continue;
    Entry& entry = *part.entry;
    take_back(entry, step);
    leave(entry, false);
    entry.runs_ahead = false;
    add(entry);
  }
}

void SchedulingPolicy::fail_all(std::string_view error) {
  while (!running_.empty()) fail(*running_.back(), error);
}

void SchedulingPolicy::end_step(const StepPlan& step) {
  for (Entry* entry : running_) {
    if (entry->step == &step) entry->step = nullptr;
  }
}

void SchedulingPolicy::measured(const StepPlan& step, std::span<const Part> parts,
                                int32_t n_source_tokens, double seconds) {
  const int32_t n_decode = step.n_tokens(parts, true);
  const int32_t n_prompt = step.n_tokens(parts, false) + n_source_tokens;
  alone_.measured(n_prompt + n_decode, seconds);
  gate_.passed(seconds);
  if (n_decode > 0) beside_.measured(n_prompt, seconds);
  if (n_decode > 0 && n_prompt == 0) {
    const int32_t n_proposed = step.n_proposed(parts);
    measured_ = {
        .n_sequences = n_decode - n_proposed, .n_proposed = n_proposed, .seconds = seconds};
  }
  counts_.prompt_tokens += n_source_tokens;
}

void SchedulingPolicy::ended(std::optional<double> seconds) {
  // The gate was told of what was spent on proposals.
  const double of_proposing = std::exchange(seconds_of_proposing_, 0);
  if (!measured_) return;
  const double in_all = std::max(measured_->seconds, seconds.value_or(0) - of_proposing);
  gate_.measured(measured_->n_sequences, measured_->n_proposed, in_all);
  measured_.reset();
}

std::vector<SchedulerOutcome> SchedulingPolicy::take_outcomes() {
  return std::exchange(outcomes_, {});
}

}  // namespace faststream
