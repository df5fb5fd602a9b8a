#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

using Entry = Scheduler::Entry;

// A prefix is worth waiting for, while another sequence computes it, if it saves so many tokens.
constexpr int32_t kWorthWaiting = kPageTokens;
// Waiting sequences that a step looks at; the others have no chance before these.
constexpr int32_t kMaxLookahead = 256;

// Whether one sequence is to become several: what they have in common is processed once, then each
// goes on by itself. So begins a group again that was preempted.
bool is_joint(const Entry& entry) { return entry.sequences.size() < entry.group->n_sequences(); }

// Tokens of each sequence of an entry's group.
int64_t length(const Entry& entry) { return static_cast<int64_t>(entry.group->tokens(0).size()); }

// What all sequences of a group begin with.
std::span<const int32_t> common_tokens(const SequenceGroup& group) {
  std::span<const int32_t> common = group.tokens(0);
  for (size_t i = 1; i < group.n_sequences(); ++i) {
    const auto end = std::ranges::mismatch(common, group.tokens(i)).in1;
    common = common.first(static_cast<size_t>(end - common.begin()));
  }
  return common;
}

// What sequence i is to have in its pages.
std::span<const int32_t> wanted_tokens(const Entry& entry, size_t i) {
  return is_joint(entry) ? common_tokens(*entry.group) : entry.group->tokens(i);
}

// Tokens that are not processed yet: one for a sequence in decode.
int32_t pending(const Entry& entry, size_t i) {
  return static_cast<int32_t>(wanted_tokens(entry, i).size()) - entry.sequences[i].n_cached;
}

bool in_decode(const Entry& entry) {
  if (!entry.has_tokens || is_joint(entry)) return false;
  for (size_t i = 0; i < entry.sequences.size(); ++i) {
    if (pending(entry, i) != 1) return false;
  }
  return true;
}

// Pages that the entry will take for the tokens it has, at most.
int32_t missing_pages(const Entry& entry) {
  const SequenceGroup& group = *entry.group;
  if (!is_joint(entry)) {
    int32_t missing = 0;
    for (size_t i = 0; i < group.n_sequences(); ++i) {
      missing += entry.sequences[i].missing_pages(static_cast<int64_t>(group.tokens(i).size()));
    }
    return missing;
  }
  const auto n_common = static_cast<int64_t>(common_tokens(group).size());
  const auto n_whole = static_cast<int32_t>(n_common / kPageTokens);
  const int32_t n_held =
      entry.sequences.empty() ? 0 : static_cast<int32_t>(entry.sequences[0].pages.size());
  int32_t missing = std::max(n_whole - n_held, 0);
  for (size_t i = 0; i < group.n_sequences(); ++i) {
    missing += pages_for(static_cast<int64_t>(group.tokens(i).size())) - n_whole;
  }
  return missing;
}

// What of a sequence can come from the cache: the logits of the last token are wanted, and a device
// may compute a single token in another order than several (see cut()).
std::span<const int32_t> cacheable(const Entry& entry) {
  const std::span<const int32_t> tokens = common_tokens(*entry.group);
  return tokens.first(tokens.size() - std::min<size_t>(tokens.size(), 2));
}

// How many of n_pending prompt tokens a step with room for n_room takes. It cuts off no single
// token: rounding would then depend on where the sequence's company had the prompt cut.
int32_t cut(int32_t n_pending, int32_t n_room) {
  if (n_room >= n_pending) return n_pending;
  const int32_t n = n_pending - n_room == 1 ? n_room - 1 : n_room;
  return n > 1 ? n : 0;
}

}  // namespace

bool Scheduler::Order::operator()(const Entry* a, const Entry* b) const {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

Scheduler::Scheduler(Runner& runner, const SchedulerLimits& limits)
    : runner_(runner),
      limits_(limits),
      threads_(limits.threads),
      alone_(limits.first_tokens, limits.max_step_tokens),
      beside_(limits.first_tokens, limits.chunk),
      cache_(runner.pages()) {
  running_.reserve(static_cast<size_t>(limits.slots));
}

Scheduler::~Scheduler() {
  for (Entry* entry : running_) {
    for (Sequence& sequence : entry->sequences) runner_.release(sequence);
  }
}

void Scheduler::add(Entry& entry) {
  if (!entry.has_tokens) entry.rope_length = runner_.config().rope_length(length(entry));
  waiting_.insert(&entry);
  n_waiting_ += entry.group->width();
}

void Scheduler::remove(Entry& entry) {
  if (waiting_.erase(&entry) == 0) {
    leave(entry, true);
  } else {
    n_waiting_ -= entry.group->width();
  }
}

void Scheduler::begin_step() {
  parts_.clear();
  try {
    begin_outgrown_again();
    admit();
    plan();
    if (!parts_.empty()) launch_error_ = launch(0, parts_.size());
  } catch (const std::exception& error) {  // not the device: memory for the bookkeeping
    fail_all(error.what());
  }
}

std::vector<Scheduler::Outcome> Scheduler::end_step() {
  try {
    if (!parts_.empty()) finish(0, parts_.size(), std::move(launch_error_));
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  return std::exchange(outcomes_, {});
}

// Has texts that are rotated otherwise from now on computed again.
void Scheduler::begin_outgrown_again() {
  for (size_t i = 0; i < running_.size();) {
    Entry& entry = *running_[i];
    if (!runner_.config().outgrows(entry.rope_length, length(entry))) {
      ++i;
      continue;
    }
    leave(entry, true);
    entry.rope_length = runner_.config().rope_length(length(entry));
    add(entry);
  }
}

void Scheduler::admit() {
  if (waiting_.empty() || n_running_ == limits_.slots) return;
  int32_t looked_at = 0;
  // Each running sequence gets what it needs for its prompt and a page more, so that a new one is
  // not preempted at once; and so does each that a new one forks into.
  int32_t promised = 0;
  for (const Entry* entry : running_) promised += missing_pages(*entry) + entry->group->width();
  for (auto next = waiting_.begin();
       next != waiting_.end() && n_running_ < limits_.slots && looked_at < kMaxLookahead;
       ++looked_at) {
    Entry& entry = **next;
    const int32_t width = entry.group->width();
    if (n_running_ + width > limits_.slots) return;  // nobody overtakes one that waits for slots
    std::string error;
    try {
      if (prefix_is_coming(entry)) {
        ++next;
        continue;
      }
      if (!try_start(entry, promised)) return;  // nor for pages
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    next = waiting_.erase(next);
    n_waiting_ -= width;
    n_running_ += width;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &entry, Order()), &entry);
    if (!error.empty()) fail(entry, error);
  }
}

// What the cache has of an entry, up to where it can go on from.
PrefixCache::Match Scheduler::find_prefix(const Entry& entry) const {
  if (!limits_.prefix_sharing) return {};
  PrefixCache::Match match = cache_.find(cacheable(entry), entry.rope_length);
  if (match.partial_page >= 0) {
    const int32_t n_tokens = match.n_tokens();
    match.pages.push_back(match.partial_page);
    const bool whole = runner_.can_go_on(match.pages, n_tokens);
    match.pages.pop_back();
    if (whole) return match;
  }
  match.partial_page = -1;
  match.partial_tokens = 0;
  while (!runner_.can_go_on(match.pages, match.n_tokens())) match.pages.pop_back();
  return match;
}

// Whether a running sequence is computing so much more of the entry's prefix than the cache has
// that it is worth waiting for.
bool Scheduler::prefix_is_coming(const Entry& entry) const {
  if (!limits_.prefix_sharing) return false;
  const std::span<const int32_t> tokens = cacheable(entry);
  const int32_t n_cached = find_prefix(entry).n_tokens();
  return std::any_of(running_.begin(), running_.end(), [&](const Entry* other) {
    if (pending(*other, 0) <= 1 || other->rope_length != entry.rope_length) return false;
    const std::span<const int32_t> theirs = wanted_tokens(*other, 0);
    const auto end = std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end());
    return end.first - tokens.begin() >= n_cached + kWorthWaiting;
  });
}

// The source of a running entry that looks at the same as this one; null if there is none.
std::shared_ptr<Source> Scheduler::find_source(const Entry& entry) const {
  const std::span<const int32_t> tokens = entry.group->source();
  const auto same = std::ranges::find_if(running_, [&](const Entry* other) {
    return std::ranges::equal(other->group->source(), tokens);
  });
  return same == running_.end() ? nullptr : (*same)->sequences.front().source;
}

// Gives a waiting sequence what the cache has of it, if there are pages for the rest beside those
// that are promised to running ones, among which it then is.
bool Scheduler::try_start(Entry& entry, int32_t& promised) {
  const PrefixCache::Match match = find_prefix(entry);
  PagePool& pool = runner_.pages();
  const std::span<const int32_t> source_tokens = entry.group->source();
  std::shared_ptr<Source> source = source_tokens.empty() ? nullptr : find_source(entry);
  const bool is_new_source = !source_tokens.empty() && !source;
  const int32_t source_pages =
      is_new_source ? pages_for(static_cast<int64_t>(source_tokens.size())) : 0;
  if (!running_.empty()) {
    int32_t wanted = missing_pages(entry) - static_cast<int32_t>(match.pages.size());
    wanted += source_pages + entry.group->width() - 1 + promised;
    int32_t available = pool.n_free() + pool.n_idle();
    for (const int32_t page : match.pages) available -= pool.references(page) == 1 ? 1 : 0;
    if (wanted > available) return false;
  }

  if (is_new_source) {
    (void)cache_.make_room(source_pages);
    source = runner_.make_source(source_tokens);
  }
  entry.sequences.resize(1);
  Sequence& sequence = entry.sequences.front();
  sequence.source = std::move(source);
  sequence.rope_length = entry.rope_length;
  sequence.pages = match.pages;
  cache_.hold(match.pages);
  sequence.n_cached = static_cast<int32_t>(match.pages.size()) * kPageTokens;
  runner_.hold_windows(sequence);
  if (match.partial_page >= 0) {
    take_partial_page(sequence, match);
    runner_.hold_windows(sequence);
  }
  if (entry.cached_tokens < 0) {
    entry.cached_tokens = sequence.n_cached;
    counts_.cached_tokens += sequence.n_cached;
  }
  promised += missing_pages(entry) + entry.group->width();
  return true;
}

// Gives a sequence the page that it shares in part with a cached text: the page itself if nobody
// else can want it, else a copy.
void Scheduler::take_partial_page(Sequence& sequence, const PrefixCache::Match& match) {
  PagePool& pool = runner_.pages();
  if (match.whole_node && pool.references(match.partial_page) == 1) {
    cache_.take_over(match.partial_page);
    sequence.pages.push_back(match.partial_page);
    sequence.n_cached += match.partial_tokens;
    return;
  }
  cache_.hold({&match.partial_page, 1});  // while room is made for the copy
  const auto let_go = [&](const int32_t* page) { pool.release(*page); };
  const std::unique_ptr<const int32_t, decltype(let_go)> held(&match.partial_page, let_go);
  if (!cache_.make_room(1)) return;
  sequence.pages.push_back(pool.take());
  const PageCopy copy{.from = match.partial_page, .to = sequence.pages.back()};
  runner_.copy_pages({&copy, 1});
  sequence.n_cached += match.partial_tokens;
}

void Scheduler::plan() {
  inputs_.clear();
  copies_.clear();
  parts_.clear();
  for (Entry* entry : running_) {
    if (is_joint(*entry) && pending(*entry, 0) == 0) split(*entry);
  }
  plan_sources();
  plan_decode();
  plan_prefill();
}

// Takes sources that are to be read, whole ones, as many as the step has room for.
void Scheduler::plan_sources() {
  sources_.clear();
  int32_t n_tokens = 0;
  for (const Entry* entry : running_) {
    Source* source = entry->sequences.front().source.get();
    if (source == nullptr || source->is_read) continue;
    if (std::ranges::find(sources_, source) != sources_.end()) continue;
    n_tokens += source->n_tokens();
    if (n_tokens > alone_.tokens() && !sources_.empty()) return;
    sources_.push_back(source);
  }
}

// Makes one sequence of what a group's sequences have in common all of these.
void Scheduler::split(Entry& entry) {
  const size_t n = entry.group->n_sequences();
  entry.sequences.reserve(n);
  while (entry.sequences.size() < n) {
    entry.sequences.push_back(runner_.fork(entry.sequences.front()));
  }
}

void Scheduler::plan_decode() {
  // By index: preempting takes entries off the end.
  for (size_t i = 0; i < running_.size(); ++i) {
    Entry& entry = *running_[i];
    if (!in_decode(entry)) continue;
    while (!cache_.make_room(pages_for_step(entry))) {
      Entry& last = *running_.back();
      preempt(last);
      if (&last == &entry) return;
    }
    begin_part(entry);
    parts_.back().is_decode = true;
    for (size_t s = 0; s < entry.sequences.size(); ++s) {
      (void)make_room(entry.sequences[s], 1);
      add_input(s, 1, NewTokens::Logits::last);
    }
    end_part();
  }
}

void Scheduler::plan_prefill() {
  const auto n_decode = static_cast<int32_t>(inputs_.size());
  int32_t budget = std::min(limits_.max_step_tokens - n_decode,
                            n_decode > 0 ? beside_.tokens() : alone_.tokens());
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Entry& entry = *running_[i];
    const Source* source = entry.sequences.front().source.get();
    const bool waits = source != nullptr && !source->is_read &&
                       std::ranges::find(sources_, source) == sources_.end();
    if (!in_decode(entry) && !waits) budget -= plan_prefill(entry, budget);
  }
}

// Has up to `budget` tokens of an entry processed; returns how many.
int32_t Scheduler::plan_prefill(Entry& entry, int32_t budget) {
  const bool is_single = entry.group->n_sequences() == 1;
  // Sequences that are to get a token together keep their last one until all are ready.
  const int32_t n_kept = is_single || is_joint(entry) ? 0 : 1;
  int32_t n_planned = 0;
  begin_part(entry);
  for (size_t i = 0; i < entry.sequences.size() && n_planned < budget; ++i) {
    Sequence& sequence = entry.sequences[i];
    const int32_t n_pending = pending(entry, i) - n_kept;
    const int32_t n_wanted = std::min(n_pending, budget - n_planned);
    int32_t n = cut(n_pending, make_room(sequence, n_wanted));
    // Sequences in decode free pages sooner or later; where there are none, the first goes on.
    while (n == 0 && n_wanted > 0 && inputs_.empty() && running_.back() != &entry) {
      preempt(*running_.back());
      n = cut(n_pending, make_room(sequence, n_wanted));
    }
    if (n == 0) continue;
    const bool complete = is_single && n == n_pending;
    add_input(i, n, complete ? NewTokens::Logits::last : NewTokens::Logits::none);
    n_planned += n;
  }
  end_part();
  return n_planned;
}

void Scheduler::begin_part(Entry& entry) {
  parts_.push_back({.entry = &entry, .first_input = inputs_.size(), .first_copy = copies_.size()});
}

// The next n_tokens of sequence i of the part's entry take part in the step.
void Scheduler::add_input(size_t i, int32_t n_tokens, NewTokens::Logits logits) {
  Entry& entry = *parts_.back().entry;
  Sequence& sequence = entry.sequences[i];
  const std::span<const int32_t> tokens = wanted_tokens(entry, i);
  inputs_.push_back({.sequence = &sequence,
                     .tokens = tokens.subspan(static_cast<size_t>(sequence.n_cached),
                                              static_cast<size_t>(n_tokens)),
                     .logits = logits});
}

void Scheduler::end_part() {
  Part& part = parts_.back();
  part.n_inputs = inputs_.size() - part.first_input;
  part.n_copies = copies_.size() - part.first_copy;
  if (part.n_inputs == 0 && part.n_copies == 0) parts_.pop_back();
}

// Whether the page that the sequence's next token goes to has tokens of others, too.
bool Scheduler::shares_next_page(const Sequence& sequence) const {
  const auto page = static_cast<size_t>(sequence.n_cached / kPageTokens);
  return page < sequence.pages.size() && runner_.pages().holders(sequence.pages[page]) > 1;
}

// Pages that the entry's sequences need for a token each. Of those that share a page the last one
// writes into it.
int32_t Scheduler::pages_for_step(const Entry& entry) const {
  std::vector<int32_t> shared;
  int32_t n = 0;
  for (const Sequence& sequence : entry.sequences) {
    n += sequence.missing_pages(sequence.n_cached + 1);
    if (!shares_next_page(sequence)) continue;
    const int32_t page = sequence.pages[static_cast<size_t>(sequence.n_cached / kPageTokens)];
    if (std::ranges::find(shared, page) == shared.end()) {
      shared.push_back(page);
    } else {
      ++n;
    }
  }
  return n;
}

// Takes pages for a sequence's next n_tokens, or as many as there is room for; returns how many.
int32_t Scheduler::make_room(Sequence& sequence, int32_t n_tokens) {
  if (n_tokens <= 0) return 0;
  if (shares_next_page(sequence)) {
    if (!cache_.make_room(1)) return 0;
    const auto page = static_cast<size_t>(sequence.n_cached / kPageTokens);
    copies_.push_back(runner_.replace_page(sequence, page, runner_.pages().take()));
  }
  while (sequence.missing_pages(sequence.n_cached + n_tokens) > 0 && cache_.make_room(1)) {
    sequence.pages.push_back(runner_.pages().take());
  }
  const auto room = static_cast<int32_t>(sequence.pages.size()) * kPageTokens - sequence.n_cached;
  return std::min(n_tokens, room);
}

void Scheduler::preempt(Entry& entry) {
  leave(entry, true);
  add(entry);
  ++counts_.preemptions;
}

bool Scheduler::wants_tokens(const Part& part) const {
  return part.n_inputs > 0 && inputs_[part.first_input].logits != NewTokens::Logits::none;
}

// Starts parts [first, first + count) of the step as one batch. Returns why the device failed, or
// nothing.
std::string Scheduler::launch(size_t first, size_t count) {
  const std::span<const Part> parts = std::span(parts_).subspan(first, count);
  const Part& back = parts.back();
  const auto copies = std::span(copies_).subspan(
      parts.front().first_copy, back.first_copy + back.n_copies - parts.front().first_copy);
  launched_ = std::chrono::steady_clock::now();
  n_launched_ = 0;
  try {
    if (!copies.empty()) runner_.copy_pages(copies);
    const std::span<const NewTokens> inputs = inputs_of(parts);
    if (inputs.empty()) return {};
    n_launched_ = read_sources(parts);
    runner_.step(inputs);
    for (const NewTokens& input : inputs) n_launched_ += static_cast<int32_t>(input.tokens.size());
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// Waits for parts [first, first + count), which were launched as one batch; has each alone
// processed if the device failed, then or now.
void Scheduler::finish(size_t first, size_t count, std::string error) {
  const std::span<Part> parts = std::span(parts_).subspan(first, count);
  if (error.empty()) {
    try {
      sample(parts);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  if (!error.empty()) {
    if (count == 1) return fail(*parts.front().entry, error);
    for (size_t i = first; i < first + count; ++i) finish(i, 1, launch(i, 1));
    return;
  }
  advance_groups(parts);
  for (const Part& part : parts) {
    try {
      if (!part.error.empty()) throw Error(part.error);
      follow(part);
    } catch (const std::exception& failure) {  // the group cannot go on, or memory for it
      fail(*part.entry, failure.what());
    }
  }
}

// Has the groups of these parts accept their tokens, in several threads where they are many: next
// to a device that is fast this is the time of a step that it waits for.
void Scheduler::advance_groups(std::span<Part> parts) {
  constexpr size_t kWorthAThread = 64;  // sequences
  std::span<SampledToken> sampled = std::span(sampled_).first(rules_.size());
  for (Part& part : parts) {
    try {
      note_prompt(part);
    } catch (const std::exception& failure) {
      part.error = failure.what();
    }
    part.sampled = sampled.first(wants_tokens(part) ? part.n_inputs : 0);
    sampled = sampled.subspan(part.sampled.size());
  }
  const size_t n_inputs = std::max<size_t>(inputs_of(parts).size(), 1);
  const auto grain = static_cast<int64_t>((kWorthAThread * parts.size() - 1) / n_inputs + 1);
  const auto advance = [&](int64_t first, int64_t last) {
    for (Part& part :
         parts.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first))) {
      if (part.sampled.empty() || !part.error.empty()) continue;
      try {
        part.parents = part.entry->group->accept(part.sampled);
      } catch (const std::exception& failure) {
        part.error = failure.what();
      }
    }
  };
  threads_.parallel_for(static_cast<int64_t>(parts.size()), grain, advance);
}

// Reads the sources of these parts that are not read; returns how many tokens that were.
int32_t Scheduler::read_sources(std::span<const Part> parts) {
  std::vector<Source*> unread;
  int32_t n_tokens = 0;
  for (const Part& part : parts) {
    Source* source = part.entry->sequences.front().source.get();
    if (source == nullptr || source->is_read || std::ranges::find(unread, source) != unread.end()) {
      continue;
    }
    unread.push_back(source);
    n_tokens += source->n_tokens();
  }
  if (!unread.empty()) runner_.read_sources(unread);
  counts_.prompt_tokens += n_tokens;
  return n_tokens;
}

// The inputs of consecutive parts.
std::span<const NewTokens> Scheduler::inputs_of(std::span<const Part> parts) const {
  const size_t first = parts.front().first_input;
  return std::span(inputs_).subspan(first,
                                    parts.back().first_input + parts.back().n_inputs - first);
}

// Has tokens chosen from the logits of what was launched. If the device fails, no sequence has
// advanced.
void Scheduler::sample(std::span<const Part> parts) {
  rules_.clear();
  const std::span<const NewTokens> inputs = inputs_of(parts);
  if (inputs.empty()) return;
  try {
    for (const Part& part : parts) {
      if (!wants_tokens(part)) continue;
      for (size_t i = 0; i < part.n_inputs; ++i) {
        rules_.push_back(part.entry->group->sampling_row(i));
      }
    }
    if (rules_.empty()) {
      runner_.wait();  // for the time that the step takes, and its errors
    } else {
      runner_.sample(rules_, sampled_);
    }
  } catch (...) {
    for (const NewTokens& input : inputs) {
      input.sequence->n_cached -= static_cast<int32_t>(input.tokens.size());
    }
    throw;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - launched_).count();
  alone_.measured(n_launched_, seconds);
  size_t n_decode = 0;
  for (const Part& part : parts) n_decode += part.is_decode ? part.n_inputs : 0;
  if (n_decode > 0) beside_.measured(n_launched_ - static_cast<int32_t>(n_decode), seconds);
  counts_.device_seconds += seconds;
  ++counts_.steps;
}

// Counts and caches the tokens of prompts that a part has processed, before its group goes on.
void Scheduler::note_prompt(const Part& part) {
  const Entry& entry = *part.entry;
  for (const NewTokens& input : inputs_of({&part, 1})) {
    if (input.tokens.size() == 1 && entry.has_tokens) continue;
    counts_.prompt_tokens += static_cast<int64_t>(input.tokens.size());
    remember(entry, static_cast<size_t>(input.sequence - entry.sequences.data()));
  }
}

// Notes that a part was processed and its tokens, if any, accepted.
void Scheduler::follow(const Part& part) {
  Entry& entry = *part.entry;
  Outcome outcome{.entry = &entry, .n_cached = entry.sequences.front().n_cached};
  if (!part.sampled.empty()) {
    ++counts_.generated_tokens;
    entry.has_tokens = true;
    outcome.has_token = true;
    if (entry.group->finished()) {
      leave(entry, true);
    } else {
      follow(entry, part.parents);
    }
  }
  outcomes_.push_back(std::move(outcome));
}

// Has the prefix cache keep what sequence i of an entry has in its pages.
void Scheduler::remember(const Entry& entry, size_t i) {
  if (!limits_.prefix_sharing) return;
  const Sequence& sequence = entry.sequences[i];
  const auto n_cached = static_cast<size_t>(sequence.n_cached);
  cache_.insert(wanted_tokens(entry, i).first(n_cached), sequence.pages, sequence.rope_length);
}

// Gives each of an entry's sequences the pages of the one that it goes on from.
void Scheduler::follow(Entry& entry, std::span<const int32_t> parents) {
  constexpr size_t kNowhere = SIZE_MAX;
  std::vector<Sequence>& sequences = entry.sequences;
  const size_t n_before = sequences.size();
  std::vector<size_t> moved_to(n_before, kNowhere);
  sequences.reserve(n_before + parents.size());
  for (const int32_t parent : parents) {
    size_t& place = moved_to[static_cast<size_t>(parent)];
    if (place == kNowhere) {
      place = sequences.size();
      sequences.push_back(std::exchange(sequences[static_cast<size_t>(parent)], {}));
    } else {
      sequences.push_back(runner_.fork(sequences[place]));
    }
  }
  for (size_t i = 0; i < n_before; ++i) runner_.release(sequences[i]);
  sequences.erase(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(n_before));
}

// Takes an entry out of its slots; `keep_pages` for those who have the same prefix.
void Scheduler::leave(Entry& entry, bool keep_pages) {
  // A group that has ended no longer has all its sequences.
  const bool is_whole = entry.sequences.size() <= entry.group->n_sequences();
  for (size_t i = 0; i < entry.sequences.size() && keep_pages && is_whole; ++i) {
    remember(entry, i);
  }
  for (Sequence& sequence : entry.sequences) runner_.release(sequence);
  entry.sequences.clear();
  running_.erase(std::ranges::find(running_, &entry));
  n_running_ -= entry.group->width();
}

void Scheduler::fail(Entry& entry, std::string_view error) {
  leave(entry, false);
  outcomes_.push_back({.entry = &entry, .error = std::string(error)});
}

void Scheduler::fail_all(std::string_view error) {
  parts_.clear();
  while (!running_.empty()) fail(*running_.back(), error);
}

}  // namespace faststream
