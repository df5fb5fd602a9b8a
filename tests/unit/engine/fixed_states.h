// A cache of states of fixed size, as recurrent layers would have: each step reads one and writes
// another, so that a step that does not count leaves what it began with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/layer_cache.h"
#include "models/config.h"

namespace faststream {

/// A description whose caches are of interest, and not what it computes.
inline ModelConfig tiny_decoder(int64_t n_layers) {
  return plain_decoder({.n_layers = n_layers,
                        .hidden = 8,
                        .n_heads = 1,
                        .n_kv_heads = 1,
                        .head_dim = 8,
                        .ffn_hidden = 8,
                        .vocab = 100,
                        .max_context = 1000});
}

/// A sequence holds the state that its next step reads (CacheHold::from) and, during a step, the
/// one that is written (to); 0 is none. Sequences share what they read. States at the ends of pages
/// are kept while there is room: known texts go on from there.
class FixedStates final : public LayerCache {
 public:
  FixedStates(size_t index, int32_t sequences)
      : LayerCache(index), most_(sequences), references_(static_cast<size_t>(2 * sequences) + 1) {}

  [[nodiscard]] CacheCost missing(const Sequence& sequence, int64_t) const override {
    const bool has_any =
        !sequence.holds.empty() && (hold(sequence).from != 0 || hold(sequence).to != 0);
    return {.states = has_any ? 0 : 1};
  }
  [[nodiscard]] int32_t free_states() const override { return most_ - n_sequences_; }
  [[nodiscard]] bool can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const override {
    return n_tokens == 0 ||
           (n_tokens % kPageTokens == 0 &&
            snapshots_.contains(pages[static_cast<size_t>(n_tokens / kPageTokens) - 1]));
  }
  void join(Sequence& sequence) override {
    const auto known =
        sequence.pages.empty() ? snapshots_.end() : snapshots_.find(sequence.pages.back());
    if (known == snapshots_.end()) return;
    retain(known->second);
    drop(hold(sequence).from);
    hold(sequence).from = known->second;
    ++n_sequences_;
  }
  void begin(Sequence& sequence, int32_t) override {
    if (hold(sequence).from == 0) ++n_sequences_;
    hold(sequence).to = take();
  }
  int32_t commit(Sequence& sequence, int32_t n_new, int32_t n_kept) override {
    if (n_kept < n_new) {
      abandon(sequence);
      return 0;
    }
    CacheHold& held = hold(sequence);
    drop(held.from);
    held = {.from = held.to};
    const int32_t end = sequence.n_cached + n_new;
    if (end % kPageTokens == 0) {
      int32_t& snapshot = snapshots_[sequence.pages[static_cast<size_t>(end / kPageTokens) - 1]];
      drop(snapshot);
      retain(snapshot = held.from);
    }
    return n_kept;
  }
  void abandon(Sequence& sequence) override {
    CacheHold& held = hold(sequence);
    drop(held.to);
    held.to = 0;
    if (held.from == 0) --n_sequences_;
  }
  void fork(const Sequence& sequence, Sequence& fork) override {
    if (hold(sequence).to != 0) throw std::logic_error("a sequence is forked during a step");
    hold(fork) = hold(sequence);
    retain(hold(fork).from);
    ++n_sequences_;
  }
  void release(Sequence& sequence) override {
    CacheHold& held = hold(sequence);
    if (held.from != 0 || held.to != 0) --n_sequences_;
    drop(held.from);
    drop(held.to);
    held = {};
  }
  void freed(int32_t page) override {
    const auto known = snapshots_.find(page);
    if (known == snapshots_.end()) return;
    drop(known->second);
    snapshots_.erase(known);
  }
  void pack(std::span<const NewTokens>, Batch&) const override {}

  /// Where a step reads and writes; 0 for none.
  [[nodiscard]] const CacheHold& states_of(const Sequence& sequence) const {
    return hold(sequence);
  }
  [[nodiscard]] int32_t n_sequences() const { return n_sequences_; }

 private:
  void retain(int32_t state) {
    if (state != 0) ++references_[static_cast<size_t>(state)];
  }
  void drop(int32_t state) {
    if (state != 0) --references_[static_cast<size_t>(state)];
  }
  // Of two for each sequence one is free, or a snapshot's alone.
  int32_t take() {
    for (;;) {
      const auto free = std::find(references_.begin() + 1, references_.end(), 0);
      if (free != references_.end()) {
        *free = 1;
        return static_cast<int32_t>(free - references_.begin());
      }
      if (snapshots_.empty()) throw std::logic_error("all states are held");
      drop(snapshots_.begin()->second);
      snapshots_.erase(snapshots_.begin());
    }
  }

  int32_t most_;
  int32_t n_sequences_ = 0;
  std::vector<int32_t> references_;       // of each state; the first is none
  std::map<int32_t, int32_t> snapshots_;  // by the page that they are at the end of
};

class FixedStatesKind final : public CacheKind {
 public:
  explicit FixedStatesKind(int32_t sequences) : sequences_(sequences) {}

  [[nodiscard]] size_t bytes(const CacheBounds&) const override {
    constexpr size_t kStateBytes = 1000;
    return 2 * static_cast<size_t>(sequences_) * kStateBytes;
  }
  [[nodiscard]] std::unique_ptr<LayerCache> open(const CacheBounds&, PagePool&,
                                                 size_t index) const override {
    return std::make_unique<FixedStates>(index, sequences_);
  }

 private:
  int32_t sequences_;
};

}  // namespace faststream
