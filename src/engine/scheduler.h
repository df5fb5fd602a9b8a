// Continuous batching: which sequences take part in each step.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "engine/generation.h"
#include "engine/prefix_cache.h"
#include "engine/runner.h"

namespace faststream {

struct SchedulerLimits {
  int32_t slots = 1;            ///< sequences that run at once
  int32_t max_step_tokens = 1;  ///< of a step, at least slots
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
///   - draws one token for each running sequence, and processes prompts in chunks beside them,
///   - preempts, when pages run out, the running sequence of the least priority, the latest first:
///     it waits again and recomputes what the prefix cache has not kept.
/// Not thread-safe.
class Scheduler {
 public:
  /// A sequence in the scheduler's care; the caller's memory.
  struct Entry {
    Generation* generation = nullptr;
    int32_t priority = 0;
    uint64_t arrival = 0;        ///< smaller came first; differs from all others'
    int64_t cached_tokens = -1;  ///< found in the KV cache when first admitted; -1 before
  };
  /// Told of each token: the entry, and the text that can be printed.
  using OnToken = std::function<void(Entry&, std::string_view)>;

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
  /// Entries whose generation is finished have left the scheduler afterwards. When the device
  /// fails, all running entries leave it, and the error is thrown on.
  void step(const OnToken& on_token);

  /// The entries that the last step ran, or that left it by an error; their order means nothing.
  [[nodiscard]] const std::vector<Entry*>& last_step() const { return last_step_; }

 private:
  struct Order {
    bool operator()(const Entry* a, const Entry* b) const;
  };

  void admit();
  bool worth_waiting(const Entry& entry, int32_t n_cached) const;
  bool try_start(Entry& entry);
  void plan();
  void plan_decode();
  void plan_prefill();
  int32_t make_room(Entry& entry, int32_t n_tokens);
  void preempt(Entry& entry);
  void process(const OnToken& on_token);
  void leave(Entry& entry, bool keep_pages);

  Runner& runner_;
  SchedulerLimits limits_;
  PrefixCache cache_;
  std::set<Entry*, Order> waiting_;
  std::vector<Entry*> running_;  // in Order
  std::vector<Chunk> chunks_;    // of this step
  std::vector<Entry*> last_step_;
  SchedulerCounts counts_;
};

}  // namespace faststream
