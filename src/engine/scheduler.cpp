#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <span>

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
  return pages_for(static_cast<int64_t>(generation.tokens().size())) -
         static_cast<int32_t>(generation.sequence.pages.size());
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
    : runner_(runner), limits_(limits), cache_(runner.pages()) {}

Scheduler::~Scheduler() {
  for (Entry* entry : running_) runner_.release(entry->generation->sequence);
}

void Scheduler::add(Entry& entry) { waiting_.insert(&entry); }

void Scheduler::remove(Entry& entry) {
  if (waiting_.erase(&entry) == 0) leave(entry, true);
}

void Scheduler::step(const OnToken& on_token) {
  admit();
  plan();
  try {
    process(on_token);
  } catch (...) {
    last_step_ = running_;
    while (!running_.empty()) leave(*running_.back(), false);
    throw;
  }
}

void Scheduler::admit() {
  int32_t looked_at = 0;
  for (auto next = waiting_.begin();
       next != waiting_.end() && static_cast<int32_t>(running_.size()) < limits_.slots &&
       looked_at < kMaxLookahead;
       ++looked_at) {
    Entry& entry = **next;
    const int32_t n_cached = limits_.prefix_sharing ? cache_.find(cacheable(entry)).n_tokens() : 0;
    if (worth_waiting(entry, n_cached)) {
      ++next;
      continue;
    }
    if (!try_start(entry)) return;  // nobody overtakes one that waits for pages
    next = waiting_.erase(next);
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &entry, Order()), &entry);
  }
}

// Whether a running sequence is computing more of the entry's prefix than the cache has.
bool Scheduler::worth_waiting(const Entry& entry, int32_t n_cached) const {
  if (!limits_.prefix_sharing) return false;
  const std::span<const int32_t> tokens = cacheable(entry);
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
  const PrefixCache::Match match =
      limits_.prefix_sharing ? cache_.find(cacheable(entry)) : PrefixCache::Match{};
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
  if (match.partial_page >= 0) {
    if (match.whole_node && pool.references(match.partial_page) == 1) {
      cache_.take_over(match.partial_page);
      sequence.pages.push_back(match.partial_page);
      sequence.n_cached += match.partial_tokens;
    } else {
      cache_.hold({&match.partial_page, 1});
      if (cache_.make_room(1)) {
        sequence.pages.push_back(pool.take());
        runner_.copy_page(match.partial_page, sequence.pages.back());
        sequence.n_cached += match.partial_tokens;
      }
      pool.release(match.partial_page);
    }
  }
  if (entry.cached_tokens < 0) {
    entry.cached_tokens = sequence.n_cached;
    counts_.cached_tokens += sequence.n_cached;
  }
  return true;
}

void Scheduler::plan() {
  chunks_.clear();
  last_step_.clear();
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
    chunks_.push_back({.sequence = &entry.generation->sequence,
                       .tokens = std::span(entry.generation->tokens()).last(1)});
    last_step_.push_back(&entry);
  }
}

void Scheduler::plan_prefill() {
  int32_t budget = limits_.max_step_tokens - static_cast<int32_t>(chunks_.size());
  if (!chunks_.empty()) budget = std::min(budget, limits_.chunk);
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Entry& entry = *running_[i];
    if (in_decode(entry)) continue;
    const int32_t n_pending = pending(entry);
    const int32_t wanted = std::min(n_pending, budget);
    int32_t n = cut(n_pending, make_room(entry, wanted));
    // Sequences in decode free pages sooner or later; where there are none, the first goes on.
    while (n == 0 && chunks_.empty() && running_.back() != &entry) {
      preempt(*running_.back());
      n = cut(n_pending, make_room(entry, wanted));
    }
    if (n == 0) continue;
    budget -= n;
    const Generation& generation = *entry.generation;
    const auto first = static_cast<size_t>(generation.sequence.n_cached);
    chunks_.push_back(
        {.sequence = &entry.generation->sequence,
         .tokens = std::span(generation.tokens()).subspan(first, static_cast<size_t>(n)),
         .logits = n == n_pending ? Chunk::Logits::last : Chunk::Logits::none});
    last_step_.push_back(&entry);
  }
}

// Takes pages for the entry's next n_tokens, or as many as there is room for; returns how many.
int32_t Scheduler::make_room(Entry& entry, int32_t n_tokens) {
  Sequence& sequence = entry.generation->sequence;
  const auto wanted = static_cast<size_t>(sequence.n_cached) + static_cast<size_t>(n_tokens);
  while (sequence.pages.size() * kPageTokens < wanted && cache_.make_room(1)) {
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

void Scheduler::process(const OnToken& on_token) {
  const auto start = std::chrono::steady_clock::now();
  runner_.step(chunks_);
  std::vector<SamplingRow> rules;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].logits == Chunk::Logits::none) continue;
    rules.push_back(last_step_[i]->generation->sampling_row());
  }
  std::vector<SampledToken> sampled;
  if (!rules.empty()) sampled = runner_.sample(rules);
  counts_.device_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++counts_.steps;

  size_t row = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    Entry& entry = *last_step_[i];
    Generation& generation = *entry.generation;
    const bool prefill = chunks_[i].tokens.size() > 1 || generation.output().tokens.empty();
    if (prefill) {
      counts_.prompt_tokens += static_cast<int64_t>(chunks_[i].tokens.size());
      if (limits_.prefix_sharing) {
        const auto n_cached = static_cast<size_t>(generation.sequence.n_cached);
        cache_.insert(std::span(generation.tokens()).first(n_cached), generation.sequence.pages);
      }
    }
    if (chunks_[i].logits == Chunk::Logits::none) continue;
    ++counts_.generated_tokens;
    const std::string_view text = generation.accept(std::move(sampled[row++]));
    if (generation.finished()) leave(entry, true);
    on_token(entry, text);
  }
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

}  // namespace faststream
