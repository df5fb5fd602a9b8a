// What layers keep of texts: one interface for all kinds of caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/page_pool.h"
#include "engine/sequence.h"

namespace faststream {

/// What sequences take of the caches' memory, or what is left of it: what can run out.
struct CacheCost {
  int32_t pages = 0;
  int32_t states = 0;  ///< of fixed size, one a sequence

  CacheCost& operator+=(const CacheCost& other) {
    pages += other.pages;
    states += other.states;
    return *this;
  }
  /// Whether there is this much in `room`.
  [[nodiscard]] bool fits(const CacheCost& room) const {
    return pages <= room.pages && states <= room.states;
  }
};

/// What caches are to hold at most.
struct CacheBounds {
  int32_t n_pages = 0;
  int32_t sequences = 0;    ///< at a time; 0: any number
  int32_t step_tokens = 0;  ///< of a step
  int32_t states = 0;       ///< of recurrent layers; 0: as many as all this asks for
};

/// The bookkeeping of one cache: who holds what, without a device. Pages, which all texts have,
/// number the parts of a text: other caches know by a page what it leads to. Memory is the
/// runner's.
///
/// A step changes a cache in two halves. begin() says what it will read and write; whatever was
/// read stays as it is. Then it counts (commit()), in whole or in part, or not at all (abandon()):
/// a cache whose memory a step overwrites keeps two copies.
class LayerCache {
 public:
  /// index: among the caches of its sequences.
  explicit LayerCache(size_t index) : index_(index) {}
  LayerCache(const LayerCache&) = delete;
  LayerCache& operator=(const LayerCache&) = delete;
  virtual ~LayerCache() = default;

  /// What a sequence takes to have so many tokens beside what it holds. Nothing where there always
  /// is room for as many sequences as were planned.
  [[nodiscard]] virtual CacheCost missing(const Sequence& /*sequence*/,
                                          int64_t /*n_tokens*/) const {
    return {};
  }
  /// States that nobody holds; more than there are sequences where it has none.
  [[nodiscard]] virtual int32_t free_states() const { return std::numeric_limits<int32_t>::max(); }
  /// What a sequence takes that is to look at this source.
  [[nodiscard]] virtual CacheCost missing_for_source(std::span<const int32_t> /*tokens*/) const {
    return {};
  }
  /// Whether a text can go on after its first n_tokens, which are in these pages and, if it is a
  /// part of the last one, at its start; after none it always can.
  [[nodiscard]] virtual bool can_go_on(std::span<const int32_t> /*pages*/,
                                       int32_t /*n_tokens*/) const {
    return true;
  }

  /// The pieces of a longer text that a step processes end at multiples of so many tokens.
  [[nodiscard]] virtual int32_t piece_tokens() const { return 1; }

  /// The sequence, a new one, is to look at this source. Throws Error, and changes nothing, where
  /// there is no room.
  virtual void look_at(Sequence& /*sequence*/, std::span<const int32_t> /*source*/) {}
  /// The sequence begins with n_cached tokens that others processed, in its pages: can_go_on().
  /// Once more where a part of a page was added.
  virtual void join(Sequence& /*sequence*/) {}
  /// A step adds n_new tokens to the n_cached that there are. Throws Error, and changes nothing,
  /// where there is no room.
  virtual void begin(Sequence& /*sequence*/, int32_t /*n_new*/) {}
  /// The step's first n_kept of n_new tokens count; n_cached is as begin() found it. Returns how
  /// many the cache could keep: others are to be processed again.
  virtual int32_t commit(Sequence& /*sequence*/, int32_t /*n_new*/, int32_t n_kept) {
    return n_kept;
  }
  /// The step failed: the cache has what it had before begin().
  virtual void abandon(Sequence& /*sequence*/) {}
  /// `fork`, of which all but this cache and those after it is made, is to go on like `sequence`.
  virtual void fork(const Sequence& sequence, Sequence& fork) = 0;
  /// Those caches that come later have released the sequence.
  virtual void release(Sequence& sequence) = 0;

  /// Whether the sequence could hold this page, which has the same tokens, in place of its page
  /// number i.
  [[nodiscard]] virtual bool can_replace(const Sequence& /*sequence*/, size_t /*i*/,
                                         int32_t /*page*/) const {
    return true;
  }
  /// The sequence holds another page in place of page number i, `old`, from now on: one of the same
  /// tokens (can_replace()), or a copy of it, which copies() is asked for.
  virtual void replaced(Sequence& /*sequence*/, size_t /*i*/, int32_t /*old*/) {}
  /// A sequence begins with a copy of a page that others have.
  virtual void copied(const PageCopy& /*copy*/) {}
  /// The page is nobody's.
  virtual void freed(int32_t /*page*/) {}
  /// What pages that are copied mean for this cache: which of its own are to be copied.
  [[nodiscard]] virtual std::vector<PageCopy> copies(std::span<const PageCopy> /*pages*/) {
    return {};
  }

  /// Tells the batch of a step where its sequences, which have begun it, have their memory.
  virtual void pack(std::span<const NewTokens> inputs, Batch& batch) const = 0;

 protected:
  [[nodiscard]] CacheHold& hold(Sequence& sequence) const { return sequence.holds[index_]; }
  [[nodiscard]] const CacheHold& hold(const Sequence& sequence) const {
    return sequence.holds[index_];
  }

 private:
  size_t index_;
};

/// A kind of cache that a model's layers need: its geometry, before there is memory for it.
class CacheKind {
 public:
  CacheKind() = default;
  CacheKind(const CacheKind&) = delete;
  CacheKind& operator=(const CacheKind&) = delete;
  virtual ~CacheKind() = default;

  /// Of device memory, for so much.
  [[nodiscard]] virtual size_t bytes(const CacheBounds& bounds) const = 0;
  /// Its bookkeeping. `pages` must outlive it.
  [[nodiscard]] virtual std::unique_ptr<LayerCache> open(const CacheBounds& bounds, PagePool& pages,
                                                         size_t index) const = 0;
};

using CacheKinds = std::vector<std::unique_ptr<CacheKind>>;

}  // namespace faststream
