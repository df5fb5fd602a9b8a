// Continuous batching: which sequences take part in each step.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generation.h"
#include "engine/prefix_cache.h"
#include "engine/runner.h"
#include "engine/step_budget.h"

namespace faststream {

struct SchedulerLimits {
  int32_t slots = 1;            ///< sequences that run at once
  int32_t max_step_tokens = 1;  ///< of a step, at least slots
  int32_t first_tokens = 1;     ///< of a prompt, before it is known how fast the device is
  int32_t chunk = 1;            ///< prompt tokens of a step beside running sequences
  bool prefix_sharing = true;
};

struct SchedulerCounts {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  ///< processed, recomputation included
  int64_t cached_tokens = 0;  ///< of prompts, found in the KV cache
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  double device_seconds = 0;
};

/// Sequences wait, then run in a slot until they have finished. Each step
///   - admits waiting ones, larger priority first, then in order of arrival, while there are slots
///     and pages, taking what the prefix cache has of them; one whose prefix is just being computed
///     by another waits for it,
///   - draws one token for each running sequence, and processes prompts in chunks beside them, so
///     many tokens that no step is long (StepBudget),
///   - preempts, when pages run out, the running sequence of the least priority, the latest first:
///     it waits again and recomputes what the prefix cache has not kept.
///
/// When the device fails in a step of several sequences, each is tried alone, so that those that
/// are not concerned go on: logits of one may be NaN, or memory may do for fewer. Not thread-safe.
class Scheduler {
 public:
  /// A sequence in the scheduler's care; the caller's memory.
  struct Entry {
    Generation* generation = nullptr;
    int32_t priority = 0;
    uint64_t arrival = 0;        ///< smaller came first; differs from all others'
    int64_t cached_tokens = -1;  ///< found in the KV cache when first admitted; -1 before
  };
  /// What a step did for an entry that it ran.
  struct Outcome {
    Entry* entry = nullptr;
    bool has_token = false;      ///< one was drawn
    std::string_view text = {};  ///< what can be printed now; valid until the next step
    std::string error = {};      ///< why the entry has left without being finished, or empty
  };

  /// `runner`'s limits must allow `limits`, and its pages one sequence of the full context.
  Scheduler(Runner& runner, const SchedulerLimits& limits);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  /// The entry and its generation must live until they have left the scheduler.
  void add(Entry& entry);
  /// Takes an entry out, whether it waits or runs.
  void remove(Entry& entry);

  [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }
  [[nodiscard]] size_t n_waiting() const { return waiting_.size(); }
  [[nodiscard]] size_t n_running() const { return running_.size(); }
  [[nodiscard]] const SchedulerCounts& counts() const { return counts_; }

  /// One forward pass and a draw for all sequences whose prompt is complete; idle() must be false.
  /// Entries whose generation is finished, and those that the device failed, have left the
  /// scheduler afterwards. Returns what became of each entry that took part, once an entry; valid
  /// until the next call.
  const std::vector<Outcome>& step();

 private:
  struct Order {
    bool operator()(const Entry* a, const Entry* b) const;
  };

  void admit();
  [[nodiscard]] PrefixCache::Match find_prefix(const Entry& entry) const;
  [[nodiscard]] bool prefix_is_coming(const Entry& entry) const;
  bool try_start(Entry& entry);
  void take_partial_page(Sequence& sequence, const PrefixCache::Match& match);
  void plan();
  void plan_decode();
  void plan_prefill();
  void add_input(Entry& entry, int32_t n_tokens);
  int32_t make_room(Entry& entry, int32_t n_tokens);
  void preempt(Entry& entry);
  void process(size_t first, size_t count);
  std::vector<SampledToken> compute(size_t first, size_t count);
  void accept(Entry& entry, const NewTokens& input, SampledToken* sampled);
  void leave(Entry& entry, bool keep_pages);
  void fail(Entry& entry, std::string_view error);

  Runner& runner_;
  SchedulerLimits limits_;
  StepBudget budget_;
  PrefixCache cache_;
  std::set<Entry*, Order> waiting_;
  std::vector<Entry*> running_;    // in Order
  std::vector<NewTokens> inputs_;  // of this step
  std::vector<Entry*> planned_;    // whose they are
  std::vector<Outcome> outcomes_;
  SchedulerCounts counts_;
};

}  // namespace faststream
