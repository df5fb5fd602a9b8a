// Continuous batching: which sequences take part in each step.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/runner.h"
#include "engine/sequence_group.h"
#include "engine/step_budget.h"
#include "support/thread_pool.h"
#include "support/worker.h"

namespace faststream {

struct SchedulerLimits {
  int32_t slots = 1;            ///< sequences that run at once
  int32_t max_step_tokens = 1;  ///< of a step, at least slots
  int32_t first_tokens = 1;     ///< of a prompt, before it is known how fast the device is
  int32_t chunk = 1;            ///< prompt tokens of a step beside running sequences, at most
  bool prefix_sharing = true;
  int threads = 1;             ///< which groups accept their tokens in, where there are many
  bool ends_together = false;  ///< see EngineOptions
  /// Two steps are in work at a time where each has so many sequences; see Scheduler.
  int32_t turn_slots = std::numeric_limits<int32_t>::max();
};

struct SchedulerCounts {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  ///< processed, recomputation included
  int64_t cached_tokens = 0;  ///< of prompts, found in the KV cache
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  double device_seconds = 0;
};

/// Groups of sequences wait, then run in slots, of which a group takes as many as it may have
/// sequences, until they have finished. Each step
///   - admits waiting ones, larger priority first, then in order of arrival, while there are slots
///     and pages, taking what the prefix cache has of them; one whose prefix is just being computed
///     by another waits for it (limits.ends_together: of the last ones those first that may
///     generate most, so that slots do not stay empty at the end),
///   - has a token chosen for each running sequence, and processes prompts in chunks beside them,
///     so many tokens that no step is long (StepBudget),
///   - preempts, when pages run out, the running group of the least priority, the latest first: it
///     waits again and recomputes what the prefix cache has not kept.
///
/// Where the model has an encoder, the sources of groups that begin are read in their first step,
/// as many as the step's tokens allow; groups with the same source share it.
///
/// Where the model rotates a text otherwise as a whole once it is long, groups whose text grows so
/// long wait again and recompute all of it.
///
/// Sequences of a group hold the pages of the tokens that they have in common together, and one
/// that is to write into such a page gets a copy of it first.
///
/// Where limits.turn_slots says so, running groups take turns in two steps of about half of the
/// sequences each: while the device computes one, the host takes what came of the other, plans its
/// next one and has another thread launch it, so that neither waits. That is for so many sequences
/// that a step takes as long as it has rows: weights are read for each half.
///
/// When the device fails in a step of several groups, each is tried alone, so that those that are
/// not concerned go on: logits of one may be NaN, or memory may do for fewer. Not thread-safe.
class Scheduler {
  struct Step;

 public:
  /// A group in the scheduler's care; the caller's memory.
  struct Entry {
    SequenceGroup* group = nullptr;
    int32_t priority = 0;
    uint64_t arrival = 0;        ///< smaller came first; differs from all others'
    int64_t most_tokens = 0;     ///< that it may generate
    int64_t cached_tokens = -1;  ///< found in the KV cache when first admitted; -1 before
    /// In its slots: of each of the group's sequences, or one of what they have in common. The
    /// scheduler's.
    std::vector<Sequence> sequences = {};
    bool has_tokens = false;     ///< the group has accepted some; the scheduler's
    int32_t rope_length = 0;     ///< of its sequences; the scheduler's
    const Step* step = nullptr;  ///< that it takes part in, planned or in flight; the scheduler's
  };
  /// What a step did for an entry that it ran.
  struct Outcome {
    Entry* entry = nullptr;
    bool has_token = false;  ///< its sequences got one; the group's write() makes text of it
    int32_t n_cached = 0;    ///< tokens of its first sequence that were processed then
    std::string error = {};  ///< why the entry has left without being finished, or empty
  };

  /// `runner`'s limits must allow `limits`, and its pages each group alone.
  Scheduler(Runner& runner, const SchedulerLimits& limits);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  /// The entry and its group, no wider than there are slots, must live until they have left the
  /// scheduler.
  void add(Entry& entry);
  /// Takes an entry out, whether it waits or runs; no step may be in flight.
  void remove(Entry& entry);

  [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }
  /// Slots that waiting groups want, and that running ones have.
  [[nodiscard]] int32_t n_waiting() const { return n_waiting_; }
  [[nodiscard]] int32_t n_running() const { return n_running_; }
  [[nodiscard]] const SchedulerCounts& counts() const { return counts_; }

  /// One forward pass and a choice of tokens for all sequences that are complete; idle() must be
  /// false. Entries whose group is finished, and those that the device failed, have left the
  /// scheduler afterwards. Returns what became of each entry that took part, once an entry.
  ///
  /// begin_step() starts a pass, and end_step() waits for the oldest in flight, unless there is to
  /// be another one beside it first. What a caller does in between, the device does not wait for;
  /// but entries may only be added then.
  std::vector<Outcome> step() {
    begin_step();
    return end_step();
  }
  void begin_step();
  [[nodiscard]] std::vector<Outcome> end_step();
  /// Waits for all steps in flight.
  [[nodiscard]] std::vector<Outcome> end_all_steps();

 private:
  struct Order {
    bool operator()(const Entry* a, const Entry* b) const;
  };
  /// An entry's part of a step: consecutive inputs, all with logits or none, and copies to be made
  /// before.
  struct Part {
    Entry* entry = nullptr;
    bool is_decode = false;
    size_t first_input = 0;
    size_t n_inputs = 0;
    size_t first_copy = 0;
    size_t n_copies = 0;
    // Once tokens are chosen:
    bool has_tokens = false;
    size_t first_row = 0;                   // of the step's choices, if it has tokens
    std::span<const int32_t> parents = {};  // what the group's accept() returned
    std::string error = {};                 // or threw
  };
  using Clock = std::chrono::steady_clock;
  /// A step from its plan to its end.
  struct Step {
    std::vector<Entry*> entries;    // in it, planned or not
    std::vector<Entry*> in_prompt;  // of these
    std::vector<Source*> sources;
    std::vector<NewTokens> inputs;
    std::vector<PageCopy> copies;
    std::vector<Part> parts;
    std::vector<SampledToken> sampled;
    // Of the parts that were begun last, all or one:
    std::vector<std::vector<PageCopy>> copies_of_groups;
    bool has_advanced = false;       // its sequences
    std::future<void> launch;        // until it is ready, what follows is the launching thread's
    std::vector<SamplingRow> rules;  // of those that want tokens
    std::unique_ptr<Choices> choices;
    std::string error;  // why the device did not begin
    Clock::time_point launched;
    int32_t n_source_tokens = 0;
    int32_t n_tokens = 0;  // of sources too
  };

  [[nodiscard]] size_t n_turns() const;
  void finish_oldest();
  void let_go(const Step& step);
  void begin_outgrown_again();
  void admit();
  [[nodiscard]] std::vector<Entry*> candidates() const;
  [[nodiscard]] PrefixCache::Match find_prefix(const Entry& entry) const;
  [[nodiscard]] bool prefix_is_coming(const Entry& entry) const;
  bool try_start(Entry& entry, int32_t& promised);
  void take_partial_page(Sequence& sequence, const PrefixCache::Match& match);
  void plan();
  void choose_entries();
  void split(Entry& entry);
  void plan_sources();
  void plan_decode();
  void plan_prefill();
  int32_t plan_prefill(Entry& entry, int32_t budget);
  void begin_part(Entry& entry);
  void add_input(size_t i, int32_t n_tokens, NewTokens::Logits logits);
  void end_part();
  [[nodiscard]] bool shares_next_page(const Sequence& sequence) const;
  [[nodiscard]] int32_t pages_for_step(const Entry& entry) const;
  int32_t make_room(Sequence& sequence, int32_t n_tokens);
  void preempt(Entry& entry);
  [[nodiscard]] static bool wants_tokens(const Step& step, const Part& part);
  void begin(Step& step, size_t first, size_t count);
  void launch(Step& step, std::span<const Part> parts);
  void wait_for_launches();
  void finish(Step& step, size_t first, size_t count);
  int32_t read_sources(std::span<const Part> parts);
  [[nodiscard]] static std::span<const NewTokens> inputs_of(const Step& step,
                                                            std::span<const Part> parts);
  void note_time(const Step& step, std::span<const Part> parts);
  void advance_groups(Step& step, std::span<Part> parts);
  void note_prompt(const Step& step, const Part& part);
  void follow(const Part& part);
  void follow(Entry& entry, std::span<const int32_t> parents);
  void remember(const Entry& entry, size_t i);
  void leave(Entry& entry, bool keep_pages);
  void fail(Entry& entry, std::string_view error);
  void fail_all(std::string_view error);

  Runner& runner_;
  SchedulerLimits limits_;
  ThreadPool threads_;
  StepBudget alone_;   // for prompts
  StepBudget beside_;  // the same where sequences are in decode
  PrefixCache cache_;
  Sources sources_;  // that running entries look at
  std::set<Entry*, Order> waiting_;
  std::vector<Entry*> running_;  // in Order
  int32_t n_waiting_ = 0;
  int32_t n_running_ = 0;
  std::array<Step, 2> steps_;
  Step* step_ = steps_.data();      // the one that is planned, or was last
  std::vector<Step*> in_flight_;    // the oldest first
  bool has_begun_ = false;          // the last begin_step() launched one
  bool is_short_of_pages_ = false;  // of those that only a step in flight gives back
  std::vector<Outcome> outcomes_;
  Clock::time_point last_end_;  // of a step
  SchedulerCounts counts_;
  std::optional<Worker> launcher_;  // once steps take turns
};

}  // namespace faststream
