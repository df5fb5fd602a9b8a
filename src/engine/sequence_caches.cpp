#include "engine/sequence_caches.h"

#include <algorithm>
#include <utility>

#include "support/error.h"

namespace faststream {

SequenceCaches::SequenceCaches(const CacheKinds& kinds, const CacheBounds& bounds,
                               int32_t n_modest_pages)
    : pages_(bounds.n_pages, n_modest_pages,
             [this](int32_t page) {
               for (const auto& cache : caches_) cache->freed(page);
             }),
      texts_(pages_) {
  for (const auto& kind : kinds) {
    caches_.push_back(kind->open(bounds, pages_, caches_.size()));
  }
}

SequenceCaches::~SequenceCaches() {
  while (!caches_.empty()) caches_.pop_back();  // whose pages become free, which the others hear
}

int32_t SequenceCaches::free_states() const {
  int32_t n = std::numeric_limits<int32_t>::max();
  for (const auto& cache : caches_) n = std::min(n, cache->free_states());
  return n;
}

CacheCost SequenceCaches::missing(const Sequence& sequence, int64_t n_tokens) const {
  CacheCost cost;
  for (const auto& cache : caches_) cost += cache->missing(sequence, n_tokens);
  return cost;
}

CacheCost SequenceCaches::missing_for_step(std::span<const Sequence> sequences) const {
  std::vector<int32_t> shared;
  CacheCost cost;
  for (const Sequence& sequence : sequences) {
    cost += missing(sequence, sequence.n_cached + 1);
    if (!shares_next_page(sequence)) continue;
    const int32_t page = sequence.pages[static_cast<size_t>(sequence.n_cached / kPageTokens)];
    if (std::ranges::find(shared, page) == shared.end()) {
      shared.push_back(page);
    } else {
      ++cost.pages;
    }
  }
  return cost;
}

CacheCost SequenceCaches::missing_for_source(std::span<const int32_t> tokens) const {
  CacheCost cost;
  for (const auto& cache : caches_) cost += cache->missing_for_source(tokens);
  return cost;
}

bool SequenceCaches::has_room(const CacheCost& cost, const Prefix& kept) const {
  CacheCost room{.pages = pages_.n_free() + pages_.n_idle(), .states = free_states()};
  for (const int32_t page : kept.pages) room.pages -= pages_.references(page) == 1 ? 1 : 0;
  return cost.fits(room);
}

bool SequenceCaches::make_room(const CacheCost& cost) {
  return cost.states <= free_states() && texts_.make_room(cost.pages);
}

bool SequenceCaches::can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const {
  return std::ranges::all_of(caches_,
                             [&](const auto& cache) { return cache->can_go_on(pages, n_tokens); });
}

// Shortens a prefix to whole pages from which every cache can go on; `drop` is told of those that
// go.
template <typename Drop>
void SequenceCaches::drop_partial_page(Prefix& prefix, Drop drop) const {
  prefix.partial_page = -1;
  prefix.partial_tokens = 0;
  while (!can_go_on(prefix.pages, prefix.n_tokens())) {
    drop(prefix.pages.back());
    prefix.pages.pop_back();
  }
}

SequenceCaches::Prefix SequenceCaches::find(std::span<const int32_t> tokens,
                                            const TextKind& kind) const {
  Prefix prefix = texts_.find(tokens, kind);
  if (prefix.partial_page >= 0) {
    const int32_t n_tokens = prefix.n_tokens();
    prefix.pages.push_back(prefix.partial_page);
    const bool whole = can_go_on(prefix.pages, n_tokens);
    prefix.pages.pop_back();
    if (whole) return prefix;
  }
  drop_partial_page(prefix, [](int32_t /*page*/) {});
  return prefix;
}

void SequenceCaches::remember(std::span<const int32_t> tokens, Sequence& sequence) {
  const auto adopt = [&](size_t i, int32_t page) {
    const auto takes = [&](const auto& cache) { return cache->can_replace(sequence, i, page); };
    if (!std::ranges::all_of(caches_, takes)) return false;
    pages_.retain(page);
    (void)replace_page(sequence, i, page);
    return true;
  };
  texts_.insert(tokens.first(static_cast<size_t>(sequence.n_cached)), sequence.pages, sequence.kind,
                adopt);
}

int32_t SequenceCaches::piece_tokens() const {
  int32_t n = 1;
  for (const auto& cache : caches_) n = std::max(n, cache->piece_tokens());
  return n;
}

void SequenceCaches::join(Sequence& sequence) {
  sequence.holds.resize(caches_.size());
  for (const auto& cache : caches_) cache->join(sequence);
}

void SequenceCaches::start(Sequence& sequence, const Prefix& prefix, const CopyPages& copy) {
  Prefix kept = prefix;
  texts_.hold(kept.pages);
  const bool takes_over =
      kept.partial_page >= 0 && kept.whole_node && pages_.references(kept.partial_page) == 1;
  if (kept.partial_page >= 0 && !takes_over && !hold_with_room_for_copy(kept.partial_page)) {
    drop_partial_page(kept, [&](int32_t page) { pages_.release(page); });
  }
  sequence.pages = kept.pages;
  sequence.n_cached = static_cast<int32_t>(kept.pages.size()) * kPageTokens;
  join(sequence);
  if (kept.partial_page >= 0) {
    take_partial_page(sequence, kept, takes_over, copy);
    join(sequence);
  }
  if (kept.known_tokens > sequence.n_cached) sequence.branch = kept.known_tokens;
}

// Where there is room for a copy of the page, holds it; else it is as it was.
bool SequenceCaches::hold_with_room_for_copy(int32_t page) {
  texts_.hold({&page, 1});
  if (texts_.make_room(1)) return true;
  pages_.release(page);
  return false;
}

// The page itself if nobody else can want it, else a copy of it, which is held until then.
void SequenceCaches::take_partial_page(Sequence& sequence, const Prefix& prefix, bool takes_over,
                                       const CopyPages& copy) {
  if (takes_over) {
    texts_.take_over(prefix.partial_page);
    sequence.pages.push_back(prefix.partial_page);
  } else {
    const auto release = [&](const int32_t* page) { pages_.release(*page); };
    const std::unique_ptr<const int32_t, decltype(release)> held(&prefix.partial_page, release);
    sequence.pages.push_back(pages_.take());
    const PageCopy of_page{.from = prefix.partial_page, .to = sequence.pages.back()};
    copy(of_page);
    for (const auto& cache : caches_) cache->copied(of_page);
  }
  sequence.n_cached += prefix.partial_tokens;
}

void SequenceCaches::look_at(Sequence& sequence, std::span<const int32_t> source) {
  (void)make_room(missing_for_source(source));
  for (const auto& cache : caches_) cache->look_at(sequence, source);
}

// Whether the page that the sequence's next token goes to has tokens of others, too.
bool SequenceCaches::shares_next_page(const Sequence& sequence) const {
  const auto page = static_cast<size_t>(sequence.n_cached / kPageTokens);
  return page < sequence.pages.size() && pages_.holders(sequence.pages[page]) > 1;
}

int32_t SequenceCaches::take_pages(Sequence& sequence, int32_t n_tokens,
                                   std::vector<PageCopy>& copies) {
  if (n_tokens <= 0) return 0;
  if (shares_next_page(sequence)) {
    if (!texts_.make_room(1)) return 0;
    const auto page = static_cast<size_t>(sequence.n_cached / kPageTokens);
    copies.push_back(replace_page(sequence, page, pages_.take()));
  }
  while (sequence.missing_pages(sequence.n_cached + n_tokens) > 0 && texts_.make_room(1)) {
    sequence.pages.push_back(pages_.take());
  }
  const auto room = static_cast<int32_t>(sequence.pages.size()) * kPageTokens - sequence.n_cached;
  return std::min(n_tokens, room);
}

bool SequenceCaches::make_room(Sequence& sequence, int32_t n_tokens,
                               std::vector<PageCopy>& copies) {
  return make_room(missing(sequence, int64_t{sequence.n_cached} + n_tokens)) &&
         take_pages(sequence, n_tokens, copies) == n_tokens;
}

PageCopy SequenceCaches::replace_page(Sequence& sequence, size_t index, int32_t page) {
  const int32_t old = std::exchange(sequence.pages[index], page);
  for (auto cache = caches_.rbegin(); cache != caches_.rend(); ++cache) {
    (*cache)->replaced(sequence, index, old);
  }
  return {.from = old, .to = page};
}

Sequence SequenceCaches::fork(const Sequence& sequence) {
  Sequence fork{.n_cached = sequence.n_cached,
                .kind = sequence.kind,
                .holds = std::vector<CacheHold>(caches_.size())};
  for (const auto& cache : caches_) cache->fork(sequence, fork);
  return fork;
}

void SequenceCaches::release(Sequence& sequence) {
  if (!sequence.holds.empty() || sequence.source) {  // else it has held nothing
    sequence.holds.resize(caches_.size());
    for (auto cache = caches_.rbegin(); cache != caches_.rend(); ++cache) {
      (*cache)->release(sequence);
    }
    sequence.holds.clear();
  }
  sequence.n_cached = 0;
  sequence.kind = {};
}

void SequenceCaches::begin(Sequence& sequence, int32_t n_new) {
  const int32_t n_states = missing(sequence, int64_t{sequence.n_cached} + n_new).states;
  if (n_states > 0 && n_states > free_states()) {
    throw Error("no state is left for another sequence; give fewer sequences");
  }
  sequence.holds.resize(caches_.size());
  for (const auto& cache : caches_) cache->begin(sequence, n_new);
  sequence.n_cached += n_new;
}

void SequenceCaches::commit(Sequence& sequence, int32_t n_new, int32_t n_kept) {
  sequence.n_cached -= n_new;
  int32_t kept = n_kept;
  for (const auto& cache : caches_) kept = std::min(kept, cache->commit(sequence, n_new, n_kept));
  sequence.n_cached += kept;
}

void SequenceCaches::abandon(Sequence& sequence, int32_t n_new) {
  sequence.n_cached -= n_new;
  for (const auto& cache : caches_) cache->abandon(sequence);
}

std::vector<std::vector<PageCopy>> SequenceCaches::copies_of_caches(
    std::span<const PageCopy> copies) {
  std::vector<std::vector<PageCopy>> of_caches;
  of_caches.reserve(caches_.size());
  for (const auto& cache : caches_) of_caches.push_back(cache->copies(copies));
  return of_caches;
}

void SequenceCaches::pack(std::span<const NewTokens> inputs, Batch& batch) const {
  for (const auto& cache : caches_) cache->pack(inputs, batch);
}

}  // namespace faststream
