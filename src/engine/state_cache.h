// States of fixed size, as recurrent layers keep them of a text.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/layer_cache.h"

namespace faststream {

/// A sequence holds the state that its next step reads (CacheHold::from) and, during a step, those
/// that are written: after all tokens (to), and after the last full page before (border); 0 is the
/// state of an empty text. Sequences share what they read.
///
/// States at the ends of pages, and of texts that ended, are kept while there is room: known texts
/// go on from there. When room runs out, those go first that are inside of texts, which have later
/// ones; then those that were used the longest ago.
class StateCache final : public LayerCache {
 public:
  /// n_states: three for each sequence at least, beside that of an empty text.
  StateCache(size_t index, int32_t sequences, int32_t n_states);

  [[nodiscard]] CacheCost missing(const Sequence& sequence, int64_t n_tokens) const override;
  [[nodiscard]] int32_t free_states() const override { return most_sequences_ - n_sequences_; }
  [[nodiscard]] bool can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const override;
  [[nodiscard]] int32_t piece_tokens() const override { return kPageTokens; }
  void join(Sequence& sequence) override;
  void begin(Sequence& sequence, int32_t n_new) override;
  /// It cannot go back to the middle of a step: all tokens count, or none do.
  int32_t commit(Sequence& sequence, int32_t n_new, int32_t n_kept) override;
  void abandon(Sequence& sequence) override;
  void fork(const Sequence& sequence, Sequence& fork) override;
  void release(Sequence& sequence) override;
  void replaced(Sequence& sequence, size_t i, int32_t old) override;
  void copied(const PageCopy& copy) override;
  void freed(int32_t page) override;
  void pack(std::span<const NewTokens> inputs, Batch& batch) const override;

  /// Where a step reads and writes.
  [[nodiscard]] const CacheHold& states_of(const Sequence& sequence) const {
    return hold(sequence);
  }
  /// Sequences that hold some.
  [[nodiscard]] int32_t n_sequences() const { return n_sequences_; }
  /// States that are kept at ends of pages and texts.
  [[nodiscard]] size_t n_snapshots() const { return snapshots_.size(); }

 private:
  struct Snapshot {
    int32_t state = 0;
    int32_t n_tokens = 0;    // of the text
    bool of_prompt = false;  // more than one token was processed before it
    bool is_inner = false;   // its text has a later one
    bool was_used = false;   // by a sequence that went on from it
    uint64_t last_used = 0;
  };
  using Rank = std::tuple<bool, uint64_t, int32_t>;  // not inner; last use; page

  static Rank rank(int32_t page, const Snapshot& snapshot) {
    return {!snapshot.is_inner, snapshot.last_used, page};
  }
  void retain(int32_t state);
  void drop(int32_t state);
  int32_t take();
  void keep(const Sequence& sequence, int32_t n_tokens, int32_t state, bool of_prompt);
  void forget(int32_t page);
  void change(int32_t page, Snapshot& snapshot, bool is_inner);

  int32_t most_sequences_;
  int32_t n_sequences_ = 0;
  int32_t n_used_ = 1;               // states [0, n_used_) have been taken before
  std::vector<int32_t> free_;        // those of them that nobody holds
  std::vector<int32_t> references_;  // of each state
  std::unordered_map<int32_t, Snapshot>
      snapshots_;         // by the page that they are in or at the end of
  std::set<Rank> ranks_;  // of them, those that go first in front
  uint64_t clock_ = 0;
};

}  // namespace faststream
