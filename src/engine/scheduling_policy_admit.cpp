// Which waiting groups begin, and what the caches know of them.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "engine/entry_tokens.h"
#include "engine/scheduling_policy.h"

namespace faststream {
namespace {

// A prefix is worth waiting for, while another sequence computes it, if it saves so many tokens.
constexpr int32_t kWorthWaiting = kPageTokens;
// Waiting sequences that a step looks at; the others have no chance before these.
constexpr size_t kMaxLookahead = 256;
// The last ones waiting: those that fill the slots so many times.
constexpr int32_t kLastFills = 2;

// What of a sequence can come from the cache: the logits of the last token are wanted, and a device
// may compute a single token in another order than several (scheduling_policy_plan.cpp, cut()).
std::span<const int32_t> cacheable(const SchedulerEntry& entry) {
  const std::span<const int32_t> tokens = common_tokens(*entry.group);
  return tokens.first(tokens.size() - std::min<size_t>(tokens.size(), 2));
}

}  // namespace

// Has texts that are rotated otherwise from now on computed again.
void SchedulingPolicy::begin_outgrown_again() {
  for (size_t i = 0; i < running_.size();) {
    Entry& entry = *running_[i];
    if (entry.step != nullptr || !config_.outgrows(entry.kind.rope_length, text_length(entry))) {
      ++i;
      continue;
    }
    leave(entry, true);
    entry.kind.rope_length = config_.rope_length(text_length(entry));
    add(entry);
  }
}

// Those waiting that a step looks at, in order.
std::vector<SchedulerEntry*> SchedulingPolicy::candidates() const {
  if (!limits_.ends_together || n_waiting_ > kLastFills * limits_.slots) {
    const auto n = std::min<size_t>(waiting_.size(), kMaxLookahead);
    return {waiting_.begin(), std::next(waiting_.begin(), static_cast<ptrdiff_t>(n))};
  }
  std::vector<Entry*> all(waiting_.begin(), waiting_.end());
  std::ranges::stable_sort(all, [](const Entry* a, const Entry* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->most_tokens > b->most_tokens;
  });
  if (all.size() > kMaxLookahead) all.resize(kMaxLookahead);
  return all;
}

void SchedulingPolicy::admit() {
  may_admit_ = false;
  if (waiting_.empty() || n_running_ == limits_.slots) return;
  CacheCost promised;
  for (const Entry* entry : running_) promised += promise(*entry);
  for (Entry* next : candidates()) {
    if (n_running_ >= limits_.slots) return;
    Entry& entry = *next;
    const int32_t width = entry.group->width();
    if (n_running_ + width > limits_.slots) return;  // nobody overtakes one that waits for slots
    std::string error;
    try {
      if (prefix_is_coming(entry)) continue;
      if (!try_start(entry, promised)) return;  // nor for pages
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    waiting_.erase(next);
    n_waiting_ -= width;
    n_running_ += width;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &entry, Order()), &entry);
    if (!error.empty()) fail(entry, error);
  }
}

// What the caches know of an entry.
SequenceCaches::Prefix SchedulingPolicy::find_prefix(const Entry& entry) const {
  if (!limits_.prefix_sharing) return {};
  return caches_.find(cacheable(entry), entry.kind);
}

// Whether a running sequence is computing so much more of the entry's prefix than the caches
// have that it is worth waiting for.
bool SchedulingPolicy::prefix_is_coming(const Entry& entry) const {
  if (!limits_.prefix_sharing) return false;
  const std::span<const int32_t> tokens = cacheable(entry);
  const int32_t n_cached = find_prefix(entry).n_tokens();
  return std::any_of(running_.begin(), running_.end(), [&](const Entry* other) {
    const bool is_in_prompt =
        pending(*other, 0) > 1 || (other->step != nullptr && !other->has_tokens);
    if (!is_in_prompt || other->kind != entry.kind) return false;
    const std::span<const int32_t> theirs = wanted_tokens(*other, 0);
    const auto end = std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end());
    return end.first - tokens.begin() >= n_cached + kWorthWaiting;
  });
}

// What the entry will take for the tokens it has, at most.
CacheCost SchedulingPolicy::missing(const Entry& entry) const {
  CacheCost cost{.pages = missing_pages(entry)};
  for (const Sequence& sequence : entry.sequences) {
    cost.states += caches_.missing(sequence, sequence.n_cached).states;
  }
  const int32_t n_to_come = entry.group->width() - static_cast<int32_t>(entry.sequences.size());
  cost.states += n_to_come * caches_.missing({}, 0).states;
  return cost;
}

// Each running sequence gets what it needs for its prompt and a page more, so that a new one is not
// preempted at once; and so does each that a new one forks into.
CacheCost SchedulingPolicy::promise(const Entry& entry) const {
  CacheCost cost = missing(entry);
  cost.pages += entry.group->width();
  return cost;
}

// Gives a waiting sequence what the caches know of it, if there is room for the rest beside what is
// promised to running ones, among which it then is.
bool SchedulingPolicy::try_start(Entry& entry, CacheCost& promised) {
  const SequenceCaches::Prefix prefix = find_prefix(entry);
  const std::span<const int32_t> source = entry.group->source();
  if (!running_.empty()) {
    CacheCost wanted = missing(entry);
    wanted.pages += entry.group->width() - 1 - static_cast<int32_t>(prefix.pages.size());
    wanted += caches_.missing_for_source(source);
    wanted += promised;
    if (!caches_.has_room(wanted, prefix)) return false;
  }

  entry.sequences.resize(1);
  Sequence& sequence = entry.sequences.front();
  sequence.kind = entry.kind;
  if (!source.empty()) caches_.look_at(sequence, source);
  caches_.start(sequence, prefix, copy_);
  if (entry.cached_tokens < 0) {
    entry.cached_tokens = sequence.n_cached;
    counts_.cached_tokens += sequence.n_cached;
  }
  promised += promise(entry);
  return true;
}

}  // namespace faststream
