// The pipeline of steps: what is planned is computed, and what came of it is taken.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runner.h"
#include "engine/scheduling_policy.h"
#include "support/thread_pool.h"
#include "support/worker.h"

namespace faststream {

/// Runs groups of sequences to their ends, in steps of those that its SchedulingPolicy chooses.
///
/// Where limits.turns and turn_slots say so, running groups take turns in several steps of about as
/// many sequences each: while the device computes one, the host takes what came of another, plans
/// its next one and has another thread launch it, so that neither waits. Of one device that is for
/// so many sequences that a step takes as long as it has rows: weights are read for each part. Of
/// stages, which each have a part of the weights, each is to have a step.
///
/// Where limits.runs_ahead says so, a step of sequences in decode is begun while the one before,
/// whose choices are its tokens, is computed: the device has them when it comes to that, and does
/// not wait for the host. Of a group that ended with the step before, the later one is for nothing.
///
/// When the device fails in a step of several groups, each is tried alone, so that those that are
/// not concerned go on: logits of one may be NaN, or memory may do for fewer. Not thread-safe.
class Scheduler {
 public:
  using Entry = SchedulerEntry;
  using Outcome = SchedulerOutcome;

  /// `runner`'s limits must allow `limits`, and its pages each group alone.
  Scheduler(Runner& runner, const SchedulerLimits& limits);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  /// The entry and its group, no wider than there are slots, must live until they have left the
  /// scheduler.
  void add(Entry& entry) { policy_.add(entry); }
  /// Takes an entry out, whether it waits or runs; no step may be in flight.
  void remove(Entry& entry) { policy_.remove(entry); }

  [[nodiscard]] bool idle() const { return policy_.idle(); }
  /// Slots that waiting groups want, and that running ones have.
  [[nodiscard]] int32_t n_waiting() const { return policy_.n_waiting(); }
  [[nodiscard]] int32_t n_running() const { return policy_.n_running(); }
  [[nodiscard]] SchedulerCounts counts() const;

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
  /// Waits for the oldest step in flight: until there are none, none begins.
  [[nodiscard]] std::vector<Outcome> end_oldest_step();
  [[nodiscard]] bool is_in_flight() const { return !in_flight_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  /// What came of a part of a step.
  struct PartResult {
    bool has_tokens = false;
    size_t first_row = 0;  // of the step's choices, if it has tokens
    size_t n_rows = 0;
    std::span<const int32_t> parents = {};  // what the group's accept() returned
    std::string error = {};                 // or threw
  };
  /// A step from its plan to its end.
  struct Step {
    StepPlan plan;
    std::vector<SampledToken> sampled;
    // Of the parts that were begun last, all or one:
    std::vector<std::vector<PageCopy>> copies;  // of each cache
    bool has_begun = false;                     // its sequences count its tokens
    std::vector<PartResult> results;
    size_t n_rows = 0;               // of choices
    std::future<void> launch;        // until it is ready, what follows is the launching thread's
    std::vector<SamplingRow> rules;  // of rows that want tokens
    std::unique_ptr<Choices> choices;
    std::string error;  // why the device did not begin
    Clock::time_point launched;
    int32_t n_source_tokens = 0;
  };
  /// Consecutive parts of a step.
  using Parts = std::span<const StepPlan::Part>;

  Step& idle_step();
  void run_ahead();
  void finish_oldest();
  void begin(Step& step, Parts parts);
  static void lay_out(Step& step, Parts parts);
  void launch(Step& step, Parts parts);
  void launch_in_turn(Step& step, Parts parts);
  void make_rules(Step& step, Parts parts);
  void in_threads(size_t n_parts, size_t grain, const std::function<void(size_t)>& task);
  void wait_for_launches();
  void finish(Step& step, Parts parts);
  bool wait_for_choices(Step& step);
  int32_t read_sources(Parts parts);
  void note_time(const Step& step, Parts parts);
  void accept(Step& step, Parts parts);
  void fail_all(std::string_view error);

  Runner& runner_;
  std::mutex threads_mutex_;
  ThreadPool threads_;  // guarded by it: one loop at a time, of this thread or the launching one
  SchedulingPolicy policy_;
  std::vector<Step> steps_;       // limits.turns
  bool states_stay_;              // limits.states_stay
  std::vector<Step*> in_flight_;  // the oldest first
  bool has_begun_ = false;        // the last begin_step() launched one
  Clock::time_point last_end_;    // of a step
  Clock::time_point last_begin_;  // likewise
  int64_t n_steps_ = 0;
  double device_seconds_ = 0;
  std::optional<Worker> launcher_;  // once steps take turns
};

}  // namespace faststream
