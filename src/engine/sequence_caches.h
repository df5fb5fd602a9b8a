// All that sequences keep, whatever kinds of caches their model has.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "engine/layer_cache.h"
#include "engine/page_pool.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"

namespace faststream {

/// The caches of a model's sequences and what is known of texts that have been processed, as one:
/// what tokens would take of all of them, whether there is room, and a sequence's life in them.
/// Bookkeeping only, without a device.
///
/// A sequence of `Sequence{}` begins with start(), or with its first tokens; each step is begun and
/// then committed or abandoned; release() ends it.
class SequenceCaches {
 public:
  using Prefix = PrefixCache::Match;
  /// Copies pages before it returns. May throw.
  using CopyPages = std::function<void(const PageCopy& copy)>;

  /// n_modest_pages: see PagePool. The first kind is of TextPages.
  SequenceCaches(const CacheKinds& kinds, const CacheBounds& bounds,
                 int32_t n_modest_pages = std::numeric_limits<int32_t>::max());
  SequenceCaches(const SequenceCaches&) = delete;
  SequenceCaches& operator=(const SequenceCaches&) = delete;
  ~SequenceCaches();

  [[nodiscard]] PagePool& pages() { return pages_; }
  [[nodiscard]] const PagePool& pages() const { return pages_; }
  /// One for each kind.
  [[nodiscard]] std::span<const std::unique_ptr<LayerCache>> caches() const { return caches_; }

  // Room. -----------------------------------------------------------------------------------------

  /// What a sequence takes to have so many tokens, beside what it holds.
  [[nodiscard]] CacheCost missing(const Sequence& sequence, int64_t n_tokens) const;
  /// What sequences take for a step of a token each. Of those that share a page the last one writes
  /// into it, the others get copies.
  [[nodiscard]] CacheCost missing_for_step(std::span<const Sequence> sequences) const;
  /// What a sequence takes that is to look at this source.
  [[nodiscard]] CacheCost missing_for_source(std::span<const int32_t> tokens) const;
  /// Whether there is room, if all of a known text that nobody uses goes but `kept`.
  [[nodiscard]] bool has_room(const CacheCost& cost, const Prefix& kept = {}) const;
  /// Makes room; of known texts that nobody uses those go that were used the longest ago. False
  /// where there is too little.
  bool make_room(const CacheCost& cost);

  /// See LayerCache.
  [[nodiscard]] int32_t piece_tokens() const;

  // Known texts. ----------------------------------------------------------------------------------

  /// The longest known prefix of a text from which every cache can go on. Holds nothing: what it
  /// names may go when room is made. Texts of different kinds have nothing in common.
  [[nodiscard]] Prefix find(std::span<const int32_t> tokens, const TextKind& kind) const;
  /// Keeps what a sequence has in the caches, its n_cached first tokens, while there is room.
  void remember(std::span<const int32_t> tokens, Sequence& sequence);
  /// Forgets all known texts.
  void forget_texts() { texts_.clear(); }

  // A sequence's life. ----------------------------------------------------------------------------

  /// Gives a new sequence a prefix that find() found just now; of a page that it has in part, the
  /// page itself if nobody else can want it, else a copy if there is room for one.
  void start(Sequence& sequence, const Prefix& prefix, const CopyPages& copy);
  /// Has a new sequence look at a source, of a model with an encoder. Throws Error where there is
  /// no room, or the encoder cannot read it.
  void look_at(Sequence& sequence, std::span<const int32_t> source);
  /// Takes pages for a sequence's next n_tokens, or for as many as there is room for; returns how
  /// many. Adds the copies that are to be made before they are written.
  int32_t take_pages(Sequence& sequence, int32_t n_tokens, std::vector<PageCopy>& copies);
  /// The same for all n_tokens, once there is room for all that they take. False where there is too
  /// little.
  bool make_room(Sequence& sequence, int32_t n_tokens, std::vector<PageCopy>& copies);
  /// Gives a sequence `page`, which it holds from now on, in place of one that others hold too.
  /// Returns the copy to be made before its next step.
  [[nodiscard]] PageCopy replace_page(Sequence& sequence, size_t index, int32_t page);
  /// A sequence of the same tokens, which shares the pages. No step of the other's may be open.
  [[nodiscard]] Sequence fork(const Sequence& sequence);
  void release(Sequence& sequence);

  // A step. ---------------------------------------------------------------------------------------

  /// A step adds n_new tokens, which n_cached counts from now on. Throws Error, and changes
  /// nothing, where there is no room.
  void begin(Sequence& sequence, int32_t n_new);
  /// Of a step's n_new tokens the first n_kept count. Where a cache cannot go back to the middle of
  /// a step, fewer or none do: n_cached says so, and the others are to be processed again.
  void commit(Sequence& sequence, int32_t n_new, int32_t n_kept);
  /// The step failed: the sequence stands where it stood. It keeps the pages.
  void abandon(Sequence& sequence, int32_t n_new);
  /// What pages that are copied mean for each cache.
  [[nodiscard]] std::vector<std::vector<PageCopy>> copies_of_caches(
      std::span<const PageCopy> copies);
  /// Tells a batch where its sequences have their memory.
  void pack(std::span<const NewTokens> inputs, Batch& batch) const;

 private:
  [[nodiscard]] bool can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const;
  [[nodiscard]] bool shares_next_page(const Sequence& sequence) const;
  [[nodiscard]] int32_t free_states() const;
  void join(Sequence& sequence);
  template <typename Drop>
  void drop_partial_page(Prefix& prefix, Drop drop) const;
  bool hold_with_room_for_copy(int32_t page);
  void take_partial_page(Sequence& sequence, const Prefix& prefix, bool takes_over,
                         const CopyPages& copy);

  PagePool pages_;  // tells the caches of pages that become free
  std::vector<std::unique_ptr<LayerCache>> caches_;
  PrefixCache texts_;
};

}  // namespace faststream
