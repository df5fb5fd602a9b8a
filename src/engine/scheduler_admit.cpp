// Which waiting groups begin, and what the prefix cache has of them.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/entry_tokens.h"
#include "engine/scheduler.h"

namespace faststream {
namespace {

// A prefix is worth waiting for, while another sequence computes it, if it saves so many tokens.
constexpr int32_t kWorthWaiting = kPageTokens;
// Waiting sequences that a step looks at; the others have no chance before these.
constexpr size_t kMaxLookahead = 256;
// The last ones waiting: those that fill the slots so many times.
constexpr int32_t kLastFills = 2;

// What of a sequence can come from the cache: the logits of the last token are wanted, and a device
// may compute a single token in another order than several (scheduler_plan.cpp, cut()).
std::span<const int32_t> cacheable(const Scheduler::Entry& entry) {
  const std::span<const int32_t> tokens = common_tokens(*entry.group);
  return tokens.first(tokens.size() - std::min<size_t>(tokens.size(), 2));
}

}  // namespace

// Has texts that are rotated otherwise from now on computed again.
void Scheduler::begin_outgrown_again() {
  for (size_t i = 0; i < running_.size();) {
    Entry& entry = *running_[i];
    if (entry.step != nullptr ||
        !runner_.config().outgrows(entry.rope_length, text_length(entry))) {
      ++i;
      continue;
    }
    leave(entry, true);
    entry.rope_length = runner_.config().rope_length(text_length(entry));
    add(entry);
  }
}

// Those waiting that a step looks at, in order.
std::vector<Scheduler::Entry*> Scheduler::candidates() const {
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

void Scheduler::admit() {
  if (waiting_.empty() || n_running_ == limits_.slots) return;
  // Each running sequence gets what it needs for its prompt and a page more, so that a new one is
  // not preempted at once; and so does each that a new one forks into.
  int32_t promised = 0;
  for (const Entry* entry : running_) promised += missing_pages(*entry) + entry->group->width();
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
    const bool is_in_prompt =
        pending(*other, 0) > 1 || (other->step != nullptr && !other->has_tokens);
    if (!is_in_prompt || other->rope_length != entry.rope_length) return false;
    const std::span<const int32_t> theirs = wanted_tokens(*other, 0);
    const auto end = std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end());
    return end.first - tokens.begin() >= n_cached + kWorthWaiting;
  });
}

// Gives a waiting sequence what the cache has of it, if there are pages for the rest beside those
// that are promised to running ones, among which it then is.
bool Scheduler::try_start(Entry& entry, int32_t& promised) {
  const PrefixCache::Match match = find_prefix(entry);
  PagePool& pool = runner_.pages();
  const std::span<const int32_t> source_tokens = entry.group->source();
  const auto known = sources_.find(source_tokens);
  std::shared_ptr<Source> source = known == sources_.end() ? nullptr : *known;
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
    source = *sources_.insert(runner_.make_source(source_tokens)).first;
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
  wait_for_launches();
  runner_.copy_pages({&copy, 1});
  sequence.n_cached += match.partial_tokens;
}

}  // namespace faststream
