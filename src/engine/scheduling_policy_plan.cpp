// Which tokens a step processes, in which pages.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "engine/entry_tokens.h"
#include "engine/scheduling_policy.h"
#include "engine/source.h"
#include "engine/stopwatch.h"

namespace faststream {

void SchedulingPolicy::plan(StepPlan& step, bool beside_another) {
  beside_another_ = beside_another;
  begin_outgrown_again();
  admit();
  begin_plan(step);
  is_short_of_room_ = false;
  choose_entries();
  for (Entry* entry : step.entries) {
    if (is_joint(*entry) && pending(*entry, 0) == 0) split(*entry);
  }
  plan_sources();
  const Stopwatch watch;
  choose_proposals();
  seconds_of_proposing_ += watch.seconds();
  plan_decode();
  plan_prefill();
  order_by_adapter();
  choose_states();
  const int32_t n_proposed = step_->n_proposed(step_->parts);
  const bool has_prompts = step_->n_tokens(step_->parts, false) > 0;
  step_->n_speculating =
      has_prompts || n_proposed == 0 ? 0 : step_->n_tokens(step_->parts, true) - n_proposed;
}

void SchedulingPolicy::begin_plan(StepPlan& step) {
  step_ = &step;
  step.entries.clear();
  step.in_prompt.clear();
  step.sources.clear();
  step.inputs.clear();
  step.copies.clear();
  step.parts.clear();
  step.unknown_tokens.clear();
  step.is_ahead = step.is_followed = false;
  step.n_speculating = 0;
}

bool SchedulingPolicy::plan_ahead(StepPlan& step, StepPlan& before) {
  if (!can_be_followed(before)) return false;
  std::vector<Entry*> going_on;
  CacheCost cost;
  for (const Part& part : before.parts) {
    if (part.entry == nullptr || part.entry->group->ends_with_next()) continue;
    going_on.push_back(part.entry);
    cost += caches_.missing_for_step(part.entry->sequences);
  }
  const std::vector<int32_t> proposals =
      wanted_proposals(going_on, static_cast<int32_t>(going_on.size()), true);
  if (going_on.empty() || std::ranges::any_of(proposals, [](int32_t n) { return n > 0; }) ||
      !caches_.make_room(cost)) {
    return false;
  }

  for (const Entry* entry : going_on) {
    if (reads_states()) limits_.drafter->forget(*entry->group);
  }
  begin_plan(step);
  step.is_ahead = before.is_followed = true;
  step.unknown_tokens.reserve(before.parts.size());  // which inputs point into
  for (int32_t row = 0; const Part& part : before.parts) {
    const NewTokens& input = before.inputs[part.first_input];
    if (part.entry != nullptr) plan_decode_ahead(*part.entry, input, row);
    ++row;
  }
  choose_states();
  return true;
}

// Whether all that runs has one token in the step, after which all but those that end may have
// another one without that any of them is known.
bool SchedulingPolicy::can_be_followed(const StepPlan& step) const {
  const bool others_may_begin = may_admit_ && !waiting_.empty();
  // A drafter that follows texts reads hidden states of each step before the next one begins.
  const bool are_states_read = reads_states() && most_followed() > 0;
  if (!limits_.runs_ahead || limits_.always_proposes || n_turns() > 1 || others_may_begin ||
      is_short_of_room_ || are_states_read) {
    return false;
  }
  size_t n = 0;
  for (const Part& part : step.parts) {
    if (!part.is_decode || part.n_inputs != 1 || step.inputs[part.first_input].n_tokens() != 1) {
      return false;
    }
    if (part.entry == nullptr) continue;
    ++n;
    const Entry& entry = *part.entry;
    if (!entry.runs_ahead || config_.outgrows(entry.kind.rope_length, text_length(entry) + 1)) {
      return false;
    }
    if (!entry.group->ends_with_next() && !entry.group->sampling_row_ahead(1)) return false;
  }
  return n == running_.size();
}

// What the step before adds to the entry's sequence counts. If it does not end with that, the next
// token is what comes of the row.
void SchedulingPolicy::plan_decode_ahead(Entry& entry, const NewTokens& before, int32_t row) {
  caches_.commit(*before.sequence, 1, 1);
  if (entry.group->ends_with_next()) return;
  entry.step = step_;
  step_->entries.push_back(&entry);
  begin_part(entry, true);
  (void)take_pages(*before.sequence, 1);
  step_->unknown_tokens.push_back(chosen_from(row));
  step_->inputs.push_back(
      {.sequence = before.sequence, .tokens = std::span(step_->unknown_tokens).last(1)});
  end_part();
}

// Takes the groups that are in no step, of as many slots as each step has where there are to be
// several.
void SchedulingPolicy::choose_entries() {
  const auto turns = static_cast<int32_t>(n_turns());
  const int32_t share = (n_running_ + turns - 1) / turns;  // so that none is left out
  int32_t n = 0;
  for (Entry* entry : running_) {
    if (entry->step != nullptr || n >= share) continue;
    entry->step = step_;
    step_->entries.push_back(entry);
    n += entry->group->width();
  }
}

// Takes sources that are to be read, whole ones, as many as the step has room for.
void SchedulingPolicy::plan_sources() {
  std::vector<Source*>& sources = step_->sources;
  int32_t n_tokens = 0;
  for (const Entry* entry : step_->entries) {
    Source* source = entry->sequences.front().source.get();
    if (source == nullptr || source->is_read) continue;
    if (std::ranges::find(sources, source) != sources.end()) continue;
    n_tokens += source->n_tokens();
    if (n_tokens > alone_.tokens() && !sources.empty()) return;
    sources.push_back(source);
  }
}

// Makes one sequence of what a group's sequences have in common all of these.
void SchedulingPolicy::split(Entry& entry) {
  const size_t n = entry.group->n_sequences();
  entry.sequences.reserve(n);
  while (entry.sequences.size() < n) {
    entry.sequences.push_back(caches_.fork(entry.sequences.front()));
  }
}

// Has groups in decode propose as much as is worth it.
void SchedulingPolicy::choose_proposals() {
  std::vector<Entry*> decoding;
  int32_t n_decoding = 0;  // sequences
  for (Entry* entry : step_->entries) {
    entry->n_proposing = 0;
    if (!in_decode(*entry)) continue;
    decoding.push_back(entry);
    n_decoding += static_cast<int32_t>(entry->sequences.size());
  }
  const std::vector<int32_t> wanted = wanted_proposals(decoding, n_decoding, false);
  for (size_t i = 0; i < wanted.size(); ++i) decoding[i]->n_proposing = wanted[i];
  std::erase_if(decoding, [](const Entry* entry) { return entry->n_proposing == 0; });
  propose(decoding);
}

// How many tokens each of these is to propose, of n_decoding sequences together; of none, nothing.
// ahead: once it has its next token.
std::vector<int32_t> SchedulingPolicy::wanted_proposals(std::span<Entry* const> decoding,
                                                        int32_t n_decoding, bool ahead) {
  n_proposable_ = proposable(n_decoding);
  if (n_proposable_ == 0 || !(limits_.always_proposes || gate_.is_open(n_decoding))) return {};

  const Stopwatch watch;
  std::vector<ProposalOffer> offers;
  offers.reserve(decoding.size());
  int32_t n_more = reads_texts() ? most_followed() - limits_.drafter->n_followed() : 0;
  for (const Entry* entry : decoding) offers.push_back(offer_of(*entry, ahead, n_more));
  std::vector<int32_t> wanted;
  if (limits_.always_proposes) {
    for (const ProposalOffer& offer : offers) {
      wanted.push_back(std::min(offer.most, n_proposable_));
    }
  } else {
    wanted = gate_.choose(offers, n_decoding, n_proposable_);
  }
  gate_.spent(watch.seconds());
  return wanted;
}

void SchedulingPolicy::propose(std::span<Entry* const> entries) {
  std::vector<DraftTask> tasks;
  for (Entry* entry : entries) {
    if (entry->group->propose(entry->n_proposing) || !read(*entry->group)) continue;
    tasks.push_back({.group = entry->group, .n_tokens = entry->n_proposing});
  }
  if (tasks.empty()) return;
  for (const DraftPass& pass : limits_.drafter->draft(tasks)) gate_.drafted(pass);
}

// Has the drafter follow the text, if that is paid for; returns whether it does.
bool SchedulingPolicy::read(const SequenceGroup& group) {
  if (limits_.drafter == nullptr) return false;
  Drafter& drafter = *limits_.drafter;
  if (drafter.follows(group)) return true;
  if (drafter.n_followed() >= most_followed()) return false;
  for (const DraftPass& pass : drafter.read(group)) gate_.read(pass);
  return drafter.follows(group);
}

// Tokens that a step may have beside those of so many sequences in decode, and of prompts that end.
int32_t SchedulingPolicy::proposable(int32_t n_decoding) const {
  if (n_running_ > kMostSpeculating) return 0;
  const auto border = std::ranges::lower_bound(limits_.row_borders, n_decoding);
  const int32_t most_rows = border == limits_.row_borders.end()
                                ? limits_.max_step_tokens
                                : std::min(limits_.max_step_tokens, *border);
  return std::clamp(most_rows - n_decoding, 0, limits_.proposed_tokens);
}

// No more tokens than the text has before it is rotated otherwise. n_more: texts that the drafter
// may begin to follow, those of earlier offers not counted.
ProposalOffer SchedulingPolicy::offer_of(const Entry& entry, bool ahead, int32_t& n_more) {
  ProposalOffer offer = ahead ? entry.group->offer_ahead(rates_) : entry.group->offer(rates_);
  if (offer.is_draft) {
    const bool is_followed = limits_.drafter != nullptr && limits_.drafter->follows(*entry.group);
    if (!is_followed && n_more-- <= 0) return {};
    if (is_followed) offer.n_unread = limits_.drafter->n_unread(*entry.group);
  }
  while (offer.most > 0 &&
         config_.outgrows(entry.kind.rope_length, text_length(entry) + offer.most)) {
    --offer.most;
  }
  return offer;
}

// Plans what is in decode; step_->in_prompt are the others then. Preempted entries are in no step.
void SchedulingPolicy::plan_decode() {
  for (Entry* next : step_->entries) {
    Entry& entry = *next;
    if (entry.step != step_) continue;
    if (!in_decode(entry)) {
      step_->in_prompt.push_back(&entry);
      continue;
    }
    while (!caches_.make_room(caches_.missing_for_step(entry.sequences))) {
      is_short_of_room_ = beside_another_;
      if (is_short_of_room_) return;
      Entry& last = *running_.back();
      preempt(last);
      if (&last == &entry) return;
    }
    plan_decode(entry);
  }
}

// Plans a token for each sequence of an entry, for which there is room, and what its group
// proposes, as far as there is room for that, too: nobody is preempted for it.
void SchedulingPolicy::plan_decode(Entry& entry) {
  begin_part(entry, true);
  for (size_t i = 0; i < entry.sequences.size(); ++i) {
    (void)take_pages(entry.sequences[i], 1);
    std::span<const int32_t> proposed = entry.group->proposed();
    proposed = proposed.first(
        std::min(proposed.size(), static_cast<size_t>(std::min(entry.n_proposing, n_proposable_))));
    if (proposed.empty()) {
      add_input(i, 1, NewTokens::Logits::last);
      continue;
    }
    const auto wanted = static_cast<int32_t>(proposed.size()) + 1;
    const int32_t n = take_pages(entry.sequences[i], wanted);
    NewTokens& input = add_input(i, 1, NewTokens::Logits::all);
    input.proposed = proposed.first(static_cast<size_t>(n - 1));
    input.one_by_one = true;
    n_proposable_ -= n - 1;
  }
  end_part();
}

void SchedulingPolicy::plan_prefill() {
  const int32_t n_decode = step_->n_tokens(step_->parts, true);
  // A piece that ends where the caches want it, and leaves no single token, is never too long.
  const int32_t unit = caches_.piece_tokens();
  const int32_t least = unit > 1 ? 2 * unit : 1;
  const bool others_wait = n_decode > 0 || beside_another_;
  int32_t budget = std::min(limits_.max_step_tokens - n_decode,
                            std::max(others_wait ? beside_.tokens() : alone_.tokens(), least));
  for (Entry* entry : step_->in_prompt) {
    if (budget <= 0 || is_short_of_room_) return;
    if (entry->step != step_) continue;
    const Source* source = entry->sequences.front().source.get();
    const bool waits = source != nullptr && !source->is_read &&
                       std::ranges::find(step_->sources, source) == step_->sources.end();
    if (!waits) budget -= plan_prefill(*entry, budget);
  }
}

// Has up to `budget` tokens of an entry processed; returns how many.
int32_t SchedulingPolicy::plan_prefill(Entry& entry, int32_t budget) {
  const bool is_single = entry.group->n_sequences() == 1;
  // Sequences that are to get a token together keep their last one until all are ready.
  const int32_t n_kept = is_single || is_joint(entry) ? 0 : 1;
  int32_t n_planned = 0;
  begin_part(entry, false);
  for (size_t i = 0; i < entry.sequences.size() && n_planned < budget; ++i) {
    Sequence& sequence = entry.sequences[i];
    const int32_t n_pending = pending(entry, i) - n_kept;
    const int32_t n_wanted = std::min(n_pending, budget - n_planned);
    int32_t n = cut(entry, sequence, n_pending, take_pages(sequence, n_wanted));
    // Sequences in decode free pages sooner or later; where there are none, the first goes on.
    const auto is_stuck = [&] {
      return n == 0 && n_wanted > 0 && step_->inputs.empty() && !beside_another_;
    };
    while (is_stuck() && running_.back() != &entry) {
      preempt(*running_.back());
      n = cut(entry, sequence, n_pending, take_pages(sequence, n_wanted));
    }
    if (n == 0) continue;
    const bool complete = is_single && n == n_pending;
    const bool was_generated = sequence.n_cached >= entry.n_prompt;
    add_input(i, n, complete ? NewTokens::Logits::last : NewTokens::Logits::none).one_by_one =
        was_generated;
    n_planned += n;
  }
  end_part();
  return n_planned;
}

// How many of a sequence's n_pending tokens a step with room for n_room takes: of the prompt so
// many that the piece ends where the caches want it, and where others branch off. It cuts off no
// single token: rounding would then depend on where the rest of the batch had the prompt cut. What
// a preempted text had generated comes behind it, one by one.
int32_t SchedulingPolicy::cut(const Entry& entry, const Sequence& sequence, int32_t n_pending,
                              int32_t n_room) const {
  const int32_t of_prompt = entry.n_prompt - sequence.n_cached;
  if (of_prompt <= 0) return std::min({n_room, n_pending, kMostOneByOne});
  n_pending = std::min(n_pending, of_prompt);
  const int32_t unit = caches_.piece_tokens();
  int32_t n = std::min(n_room, n_pending);
  const int32_t until_branch = sequence.branch - sequence.n_cached;
  if (unit > 1 && until_branch > 1 && until_branch < n) n = until_branch;
  if (n < n_pending) n -= (sequence.n_cached + n) % unit;
  if (n_pending - n == 1) n -= unit;
  return n > 1 || n == n_pending ? n : 0;
}

void SchedulingPolicy::begin_part(Entry& entry, bool is_decode) {
  step_->parts.push_back({.entry = &entry,
                          .is_decode = is_decode,
                          .first_input = step_->inputs.size(),
                          .first_copy = step_->copies.size()});
}

// The next n_tokens of sequence i of the part's entry take part in the step.
NewTokens& SchedulingPolicy::add_input(size_t i, int32_t n_tokens, NewTokens::Logits logits) {
  Entry& entry = *step_->parts.back().entry;
  Sequence& sequence = entry.sequences[i];
  const std::span<const int32_t> tokens = wanted_tokens(entry, i);
  step_->inputs.push_back({.sequence = &sequence,
                           .tokens = tokens.subspan(static_cast<size_t>(sequence.n_cached),
                                                    static_cast<size_t>(n_tokens)),
                           .logits = logits});
  return step_->inputs.back();
}

void SchedulingPolicy::end_part() {
  Part& part = step_->parts.back();
  part.n_inputs = step_->inputs.size() - part.first_input;
  part.n_copies = step_->copies.size() - part.first_copy;
  if (part.n_inputs == 0 && part.n_copies == 0) step_->parts.pop_back();
}

// Says of which texts a drafter is to read hidden states: to have those that are not there for
// logits takes as long as the last layer's feed-forward. Those after other layers are there anyway.
void SchedulingPolicy::choose_states() {
  if (states_for_predictors(config_)) return;
  int32_t n_more = reads_states() ? most_followed() - limits_.drafter->n_followed() : 0;
  bool is_any_of_prompt = false;
  for (const Part& part : step_->parts) {
    const SequenceGroup& group = *part.entry->group;
    for (size_t i = 0; i < part.n_inputs; ++i) {
      NewTokens& input = step_->inputs[part.first_input + i];
      const bool is_prompt = input.n_logits() < input.n_tokens();
      input.with_states =
          may_follow(group) && (limits_.drafter->follows(group) || (is_prompt && n_more-- > 0));
      is_any_of_prompt |= is_prompt && input.with_states;
    }
  }
  if (is_any_of_prompt) return;
  for (NewTokens& input : step_->inputs) input.with_states = false;
}

// Brings parts with the same adapter together, so that a step multiplies once with what it adds to
// a matrix.
void SchedulingPolicy::order_by_adapter() {
  const auto adapter_of = [](const Part& part) { return part.entry->kind.adapter; };
  std::vector<Part>& parts = step_->parts;
  if (std::ranges::is_sorted(parts, {}, adapter_of)) return;
  std::ranges::stable_sort(parts, {}, adapter_of);
  std::vector<NewTokens> inputs;
  std::vector<PageCopy> copies;
  for (Part& part : parts) {
    std::ranges::copy(step_->inputs_of({&part, 1}), std::back_inserter(inputs));
    std::ranges::copy(step_->copies_of({&part, 1}), std::back_inserter(copies));
    part.first_input = inputs.size() - part.n_inputs;
    part.first_copy = copies.size() - part.n_copies;
  }
  step_->inputs = std::move(inputs);
  step_->copies = std::move(copies);
}

// Pages for a sequence's next n_tokens, or as many as there is room for; returns how many.
int32_t SchedulingPolicy::take_pages(Sequence& sequence, int32_t n_tokens) {
  return caches_.take_pages(sequence, n_tokens, step_->copies);
}

void SchedulingPolicy::preempt(Entry& entry) {
  leave(entry, true);
  add(entry);
  ++counts_.preemptions;
}

}  // namespace faststream
