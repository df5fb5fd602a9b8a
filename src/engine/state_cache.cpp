#include "engine/state_cache.h"

#include <stdexcept>
#include <utility>

namespace faststream {

StateCache::StateCache(size_t index, int32_t sequences, int32_t n_states)
    : LayerCache(index), most_sequences_(sequences), references_(static_cast<size_t>(n_states), 0) {
  free_.reserve(references_.size());
}

CacheCost StateCache::missing(const Sequence& sequence, int64_t /*n_tokens*/) const {
  const bool has_any =
      !sequence.holds.empty() && (hold(sequence).from != 0 || hold(sequence).to != 0);
  return {.states = has_any ? 0 : 1};
}

bool StateCache::can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const {
  if (n_tokens == 0) return true;
  const auto known = snapshots_.find(pages.back());
  return known != snapshots_.end() && known->second.n_tokens == n_tokens;
}

void StateCache::join(Sequence& sequence) {
  if (sequence.pages.empty()) return;
  const auto known = snapshots_.find(sequence.pages.back());
  if (known == snapshots_.end() || known->second.n_tokens != sequence.n_cached) return;
  auto& [page, snapshot] = *known;
  ranks_.erase(rank(page, snapshot));
  snapshot.last_used = ++clock_;
  snapshot.is_inner = false;
  snapshot.was_used = true;
  ranks_.insert(rank(page, snapshot));
  retain(snapshot.state);
  const int32_t before = std::exchange(hold(sequence).from, snapshot.state);
  drop(before);
  if (before == 0) ++n_sequences_;
}

void StateCache::begin(Sequence& sequence, int32_t n_new) {
  CacheHold& held = hold(sequence);
  if (held.from == 0) ++n_sequences_;
  held.to = take();
  if (border_of(sequence.n_cached + n_new) > sequence.n_cached) held.border = take();
}

int32_t StateCache::commit(Sequence& sequence, int32_t n_new, int32_t n_kept) {
  if (n_kept < n_new) {
    abandon(sequence);
    return 0;
  }
  const CacheHold held = std::exchange(hold(sequence), {.from = hold(sequence).to});
  drop(held.from);
  const int32_t end = sequence.n_cached + n_new;
  if (held.border != 0) keep(sequence, border_of(end), held.border, true);
  drop(held.border);
  if (end % kPageTokens == 0) keep(sequence, end, held.to, n_new > 1);
  return n_kept;
}

void StateCache::abandon(Sequence& sequence) {
  CacheHold& held = hold(sequence);
  drop(std::exchange(held.to, 0));
  drop(std::exchange(held.border, 0));
  if (held.from == 0) --n_sequences_;
}

void StateCache::fork(const Sequence& sequence, Sequence& fork) {
  if (hold(sequence).to != 0) throw std::logic_error("a sequence is forked during a step");
  hold(fork) = hold(sequence);
  if (hold(fork).from == 0) return;
  retain(hold(fork).from);
  ++n_sequences_;
}

void StateCache::release(Sequence& sequence) {
  CacheHold& held = hold(sequence);
  if (held.from != 0 || held.to != 0) --n_sequences_;
  const bool is_within_page = sequence.n_cached % kPageTokens != 0;
  if (held.from != 0 && held.to == 0 && is_within_page) {
    keep(sequence, sequence.n_cached, held.from, false);
  }
  drop(held.from);
  drop(held.to);
  drop(held.border);
  held = {};
}

// The page has the same tokens: what is known of one is known of the other.
void StateCache::replaced(Sequence& sequence, size_t i, int32_t old) {
  const auto known = snapshots_.find(old);
  if (known == snapshots_.end()) return;
  const int32_t page = sequence.pages[i];
  const Snapshot snapshot = known->second;
  if (snapshots_.contains(page)) return;
  ranks_.erase(rank(old, snapshot));
  snapshots_.erase(known);
  snapshots_.emplace(page, snapshot);
  ranks_.insert(rank(page, snapshot));
}

void StateCache::copied(const PageCopy& copy) {
  const auto known = snapshots_.find(copy.from);
  if (known == snapshots_.end()) return;
  retain(known->second.state);
  const Snapshot snapshot = known->second;
  snapshots_.emplace(copy.to, snapshot);
  ranks_.insert(rank(copy.to, snapshot));
}

void StateCache::freed(int32_t page) {
  if (snapshots_.contains(page)) forget(page);
}

void StateCache::pack(std::span<const NewTokens> inputs, Batch& batch) const {
  for (const NewTokens& input : inputs) {
    const CacheHold& held = hold(*input.sequence);
    batch.state_from.push_back(held.from);
    batch.state_to.push_back(held.to);
    batch.state_border.push_back(held.border);
  }
}

void StateCache::retain(int32_t state) {
  if (state != 0) ++references_[static_cast<size_t>(state)];
}

void StateCache::drop(int32_t state) {
  if (state != 0 && --references_[static_cast<size_t>(state)] == 0) free_.push_back(state);
}

// One that nobody holds, or a snapshot's alone.
int32_t StateCache::take() {
  while (free_.empty() && n_used_ == static_cast<int32_t>(references_.size())) {
    if (ranks_.empty()) throw std::logic_error("all states are held");
    forget(std::get<int32_t>(*ranks_.begin()));
  }
  int32_t state = n_used_;
  if (free_.empty()) {
    ++n_used_;
  } else {
    state = free_.back();
    free_.pop_back();
  }
  references_[static_cast<size_t>(state)] = 1;
  return state;
}

// Keeps the state of a sequence's first n_tokens by their last page. That of its text which was
// kept before is an inner one from now on, unless others used it, or it is the prompt's and this is
// not.
void StateCache::keep(const Sequence& sequence, int32_t n_tokens, int32_t state, bool of_prompt) {
  const auto last = static_cast<size_t>(pages_for(n_tokens)) - 1;
  const int32_t page = sequence.pages[last];
  if (snapshots_.contains(page)) forget(page);
  retain(state);
  const Snapshot snapshot{
      .state = state, .n_tokens = n_tokens, .of_prompt = of_prompt, .last_used = ++clock_};
  snapshots_.emplace(page, snapshot);
  ranks_.insert(rank(page, snapshot));
  for (size_t i = last; i > 0; --i) {
    const auto before = snapshots_.find(sequence.pages[i - 1]);
    if (before == snapshots_.end()) continue;
    if (!before->second.was_used && before->second.of_prompt == of_prompt) {
      change(before->first, before->second, true);
    }
    return;
  }
}

void StateCache::change(int32_t page, Snapshot& snapshot, bool is_inner) {
  ranks_.erase(rank(page, snapshot));
  snapshot.is_inner = is_inner;
  ranks_.insert(rank(page, snapshot));
}

void StateCache::forget(int32_t page) {
  const auto known = snapshots_.find(page);
  ranks_.erase(rank(page, known->second));
  drop(known->second.state);
  snapshots_.erase(known);
}

}  // namespace faststream
