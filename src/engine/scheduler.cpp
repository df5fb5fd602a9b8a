#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <utility>

namespace faststream {
namespace {

using Entry = Scheduler::Entry;

// A prefix is worth waiting for, while another sequence computes it, if it saves so many tokens.
constexpr int32_t kWorthWaiting = kPageTokens;
// Waiting sequences that a step looks at; the others have no chance before these.
constexpr int32_t kMaxLookahead = 256;

// Tokens that are not processed yet: one for a sequence in decode.
int32_t pending(const Entry& entry) {
  return static_cast<int32_t>(entry.generation->tokens().size()) -
         entry.generation->sequence.n_cached;
}

bool in_decode(const Entry& entry) {
  return pending(entry) == 1 && !entry.generation->output().tokens.empty();
}

// Pages that the sequence will take for the tokens it has.
int32_t missing_pages(const Generation& generation) {
  return generation.sequence.missing_pages(static_cast<int64_t>(generation.tokens().size()));
}

// What of a sequence can come from the cache: the logits of the last token are wanted, and a device
// may compute a single token in another order than several (see cut()).
std::span<const int32_t> cacheable(const Entry& entry) {
  const std::vector<int32_t>& tokens = entry.generation->tokens();
  return std::span(tokens).first(tokens.size() - std::min<size_t>(tokens.size(), 2));
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
      budget_(limits.first_tokens, limits.max_step_tokens),
      cache_(runner.pages()) {
  running_.reserve(static_cast<size_t>(limits.slots));
}

Scheduler::~Scheduler() {
  for (Entry* entry : running_) runner_.release(entry->generation->sequence);
}

void Scheduler::add(Entry& entry) { waiting_.insert(&entry); }

void Scheduler::remove(Entry& entry) {
  if (waiting_.erase(&entry) == 0) leave(entry, true);
}

const std::vector<Scheduler::Outcome>& Scheduler::step() {
  outcomes_.clear();
  try {
    admit();
    plan();
    if (!inputs_.empty()) process(0, inputs_.size());
  } catch (const std::exception& error) {  // not the device: memory for the bookkeeping
    while (!running_.empty()) fail(*running_.back(), error.what());
  }
  return outcomes_;
}

void Scheduler::admit() {
  int32_t looked_at = 0;
  for (auto next = waiting_.begin();
       next != waiting_.end() && static_cast<int32_t>(running_.size()) < limits_.slots &&
       looked_at < kMaxLookahead;
       ++looked_at) {
    Entry& entry = **next;
    std::string error;
    try {
      if (prefix_is_coming(entry)) {
        ++next;
        continue;
      }
      if (!try_start(entry)) return;  // nobody overtakes one that waits for pages
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    next = waiting_.erase(next);
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &entry, Order()), &entry);
    if (!error.empty()) fail(entry, error);
  }
}

// What the cache has of an entry, up to where it can go on from.
PrefixCache::Match Scheduler::find_prefix(const Entry& entry) const {
  if (!limits_.prefix_sharing) return {};
  PrefixCache::Match match = cache_.find(cacheable(entry));
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
    if (pending(*other) <= 1) return false;
    const std::vector<int32_t>& theirs = other->generation->tokens();
    const auto end = std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end());
    return end.first - tokens.begin() >= n_cached + kWorthWaiting;
  });
}

// Gives a waiting sequence what the cache has of it, if there are pages for the rest.
bool Scheduler::try_start(Entry& entry) {
  Sequence& sequence = entry.generation->sequence;
  const PrefixCache::Match match = find_prefix(entry);
  PagePool& pool = runner_.pages();
  if (!running_.empty()) {
    // Each running sequence gets what it needs for its prompt and a page more, so that the new one
    // is not preempted at once.
    int32_t wanted = missing_pages(*entry.generation) - static_cast<int32_t>(match.pages.size());
    for (const Entry* other : running_) wanted += missing_pages(*other->generation) + 1;
    int32_t available = pool.n_free() + pool.n_idle();
    for (const int32_t page : match.pages) available -= pool.references(page) == 1 ? 1 : 0;
    if (wanted > available) return false;
  }

  cache_.hold(match.pages);
  sequence.pages = match.pages;
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
  runner_.copy_page(match.partial_page, sequence.pages.back());
  sequence.n_cached += match.partial_tokens;
}

void Scheduler::plan() {
  inputs_.clear();
  planned_.clear();
  plan_decode();
  plan_prefill();
}

void Scheduler::plan_decode() {
  // By index: preempting takes entries off the end.
  for (size_t i = 0; i < running_.size(); ++i) {
    Entry& entry = *running_[i];
    if (!in_decode(entry)) continue;
    while (make_room(entry, 1) == 0) {
      Entry& last = *running_.back();
      preempt(last);
      if (&last == &entry) return;
    }
    add_input(entry, 1);
  }
}

void Scheduler::plan_prefill() {
  const auto n_decode = static_cast<int32_t>(inputs_.size());
  int32_t budget = std::min(limits_.max_step_tokens - n_decode, budget_.tokens());
  if (n_decode > 0) budget = std::min(budget, limits_.chunk);
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Entry& entry = *running_[i];
    if (in_decode(entry)) continue;
    const int32_t n_pending = pending(entry);
    const int32_t wanted = std::min(n_pending, budget);
    int32_t n = cut(n_pending, make_room(entry, wanted));
    // Sequences in decode free pages sooner or later; where there are none, the first goes on.
    while (n == 0 && inputs_.empty() && running_.back() != &entry) {
      preempt(*running_.back());
      n = cut(n_pending, make_room(entry, wanted));
    }
    if (n == 0) continue;
    budget -= n;
    add_input(entry, n);
  }
}

// The entry's next n_tokens take part in the step.
void Scheduler::add_input(Entry& entry, int32_t n_tokens) {
  const std::span<const int32_t> tokens = entry.generation->tokens();
  Sequence& sequence = entry.generation->sequence;
  const bool complete = n_tokens == pending(entry);
  inputs_.push_back({.sequence = &sequence,
                     .tokens = tokens.subspan(static_cast<size_t>(sequence.n_cached),
                                              static_cast<size_t>(n_tokens)),
                     .logits = complete ? NewTokens::Logits::last : NewTokens::Logits::none});
  planned_.push_back(&entry);
}

// Takes pages for the entry's next n_tokens, or as many as there is room for; returns how many.
int32_t Scheduler::make_room(Entry& entry, int32_t n_tokens) {
  Sequence& sequence = entry.generation->sequence;
  while (sequence.missing_pages(sequence.n_cached + n_tokens) > 0 && cache_.make_room(1)) {
    sequence.pages.push_back(runner_.pages().take());
  }
  const auto room = static_cast<int32_t>(sequence.pages.size()) * kPageTokens - sequence.n_cached;
  return std::min(n_tokens, room);
}

void Scheduler::preempt(Entry& entry) {
  leave(entry, true);
  waiting_.insert(&entry);
  ++counts_.preemptions;
}

// Runs inputs [first, first + count) of the step as one batch; each alone if the device fails.
void Scheduler::process(size_t first, size_t count) {
  std::vector<SampledToken> sampled;
  try {
    sampled = compute(first, count);
  } catch (const std::exception& error) {
    if (count == 1) return fail(*planned_[first], error.what());
    for (size_t i = first; i < first + count; ++i) process(i, 1);
    return;
  }
  SampledToken* next = sampled.data();
  for (size_t i = first; i < first + count; ++i) {
    const bool has_token = inputs_[i].logits != NewTokens::Logits::none;
    accept(*planned_[i], inputs_[i], has_token ? next++ : nullptr);
  }
}

// The tokens that are drawn from the inputs' logits. If the device fails, no sequence has advanced.
std::vector<SampledToken> Scheduler::compute(size_t first, size_t count) {
  const auto inputs = std::span(inputs_).subspan(first, count);
  const auto start = std::chrono::steady_clock::now();
  runner_.step(inputs);
  std::vector<SampledToken> sampled;
  try {
    std::vector<SamplingRow> rules;
    for (size_t i = 0; i < count; ++i) {
      if (inputs[i].logits == NewTokens::Logits::none) continue;
      rules.push_back(planned_[first + i]->generation->sampling_row());
    }
    if (rules.empty()) {
      runner_.wait();  // for the time that the step takes, and its errors
    } else {
      sampled = runner_.sample(rules);
    }
  } catch (...) {
    for (const NewTokens& input : inputs) {
      input.sequence->n_cached -= static_cast<int32_t>(input.tokens.size());
    }
    throw;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  int32_t n_tokens = 0;
  for (const NewTokens& input : inputs) n_tokens += static_cast<int32_t>(input.tokens.size());
  budget_.measured(n_tokens, seconds);
  counts_.device_seconds += seconds;
  ++counts_.steps;
  return sampled;
}

// Notes that an input was processed and its token, if any, drawn.
void Scheduler::accept(Entry& entry, const NewTokens& input, SampledToken* sampled) {
  Generation& generation = *entry.generation;
  if (input.tokens.size() > 1 || generation.output().tokens.empty()) {  // of the prompt
    counts_.prompt_tokens += static_cast<int64_t>(input.tokens.size());
    if (limits_.prefix_sharing) {
      const auto n_cached = static_cast<size_t>(generation.sequence.n_cached);
      cache_.insert(std::span(generation.tokens()).first(n_cached), generation.sequence.pages);
    }
  }
  Outcome outcome{.entry = &entry};
  if (sampled != nullptr) {
    ++counts_.generated_tokens;
    outcome.has_token = true;
    outcome.text = generation.accept(std::move(*sampled));
    if (generation.finished()) leave(entry, true);
  }
  outcomes_.push_back(std::move(outcome));
}

// Takes an entry out of its slot; `keep_pages` for those who have the same prefix.
void Scheduler::leave(Entry& entry, bool keep_pages) {
  Generation& generation = *entry.generation;
  Sequence& sequence = generation.sequence;
  if (keep_pages && limits_.prefix_sharing) {
    const auto n_cached = static_cast<size_t>(sequence.n_cached);
    cache_.insert(std::span(generation.tokens()).first(n_cached), sequence.pages);
  }
  runner_.release(sequence);
  running_.erase(std::find(running_.begin(), running_.end(), &entry));
}

void Scheduler::fail(Entry& entry, std::string_view error) {
  leave(entry, false);
  outcomes_.push_back({.entry = &entry, .error = std::string(error)});
}

}  // namespace faststream
