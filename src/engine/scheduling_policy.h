// Which sequences take part in each step, and who gets room in the caches: continuous batching
// without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "engine/acceptance_rate.h"
#include "engine/drafter.h"
#include "engine/sequence.h"
#include "engine/sequence_caches.h"
#include "engine/sequence_group.h"
#include "engine/speculation_gate.h"
#include "engine/step_budget.h"
#include "models/config.h"

namespace faststream {

struct SchedulerLimits {
  int32_t slots = 1;            ///< sequences that run at once
  int32_t max_step_tokens = 1;  ///< of a step, at least slots and what may be proposed
  int32_t first_tokens = 1;     ///< of a prompt, before it is known how fast the device is
  int32_t chunk = 1;            ///< prompt tokens of a step beside running sequences, at most
  bool prefix_sharing = true;
  int threads = 1;  ///< which groups make masks and, where they are many, accept their tokens in
  bool ends_together = false;  ///< see EngineOptions
  /// So many steps are in work at a time where each has turn_slots sequences, or fewer; see
  /// Scheduler.
  int32_t turns = 2;
  int32_t turn_slots = std::numeric_limits<int32_t>::max();
  /// A step may begin before it is known what the one before chose, see Scheduler: the executor
  /// reads choices.
  bool runs_ahead = false;
  /// What a drafter reads of a step stays until the next one's choices are waited for; else only
  /// until another step begins.
  bool states_stay = false;
  /// Tokens of a step that groups propose, at most: it may ask for a row of logits for each, beside
  /// one a sequence in decode.
  int32_t proposed_tokens = 0;
  Drafter* drafter = nullptr;                 ///< for groups that find no proposals by themselves
  bool always_proposes = false;               ///< all that is offered, whatever it costs
  std::span<const int32_t> row_borders = {};  ///< that proposals do not carry a step across

  /// Of a model in so many stages: each has a step, of as few sequences as may be.
  void run_in_stages(int32_t stages) {
    if (stages == 1) return;
    turns = stages;
    turn_slots = 1;
    states_stay = true;
  }
};

struct SchedulerCounts {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  ///< processed, recomputation included
  int64_t cached_tokens = 0;  ///< of prompts, found in the KV cache
  int64_t generated_tokens = 0;
  int64_t proposed_tokens = 0;  ///< for the place of generated ones
  int64_t accepted_tokens = 0;  ///< of them
  int64_t preemptions = 0;
  double device_seconds = 0;
};

struct StepPlan;

/// A group in a scheduler's care; the caller's memory.
struct SchedulerEntry {
  SequenceGroup* group = nullptr;
  int32_t priority = 0;
  uint64_t arrival = 0;        ///< smaller came first; differs from all others'
  int64_t most_tokens = 0;     ///< that it may generate
  int64_t cached_tokens = -1;  ///< found in the KV cache when first admitted; -1 before
  /// In its slots: of each of the group's sequences, or one of what they have in common. The
  /// scheduler's, as all that follows.
  std::vector<Sequence> sequences = {};
  bool has_tokens = false;   ///< the group has accepted some
  int32_t n_prompt = 0;      ///< tokens of its texts before that
  TextKind kind = {};        ///< of its sequences
  int32_t n_proposing = 0;   ///< tokens, in the step that is planned
  StepPlan* step = nullptr;  ///< that it takes part in, planned or in flight; the later one
  bool runs_ahead = true;    ///< no step that began so early has failed
};

/// What a step did for an entry that it ran.
struct SchedulerOutcome {
  SchedulerEntry* entry = nullptr;
  bool has_token = false;     ///< its sequences got some; the group's write() makes text of them
  int32_t n_cached = 0;       ///< tokens of its first sequence that were processed then
  std::string error = {};     ///< why the entry has left without being finished, or empty
  bool is_of_device = false;  ///< the error is the device's, not the entry's
};

/// What one step is to compute.
struct StepPlan {
  /// An entry's part: consecutive inputs, all with logits or none, and copies to be made before.
  struct Part {
    SchedulerEntry* entry = nullptr;  ///< null: it has ended with the step before
    bool is_decode = false;
    size_t first_input = 0;
    size_t n_inputs = 0;
    size_t first_copy = 0;
    size_t n_copies = 0;
  };

  std::vector<SchedulerEntry*> entries;    ///< in it, planned or not
  std::vector<SchedulerEntry*> in_prompt;  ///< of these
  std::vector<Source*> sources;
  std::vector<NewTokens> inputs;
  std::vector<PageCopy> copies;
  std::vector<Part> parts;
  /// It begins before it is known what the step before chose, which is what its inputs are.
  bool is_ahead = false;
  bool is_followed = false;             ///< by such a step: what it adds to the caches counts
  std::vector<int32_t> unknown_tokens;  ///< its inputs', where it is ahead
  int32_t n_speculating = 0;  ///< sequences in decode, where some have proposals and none a prompt

  /// Of consecutive parts.
  [[nodiscard]] std::span<const NewTokens> inputs_of(std::span<const Part> of) const;
  [[nodiscard]] std::span<const PageCopy> copies_of(std::span<const Part> of) const;
  /// Tokens of the prompts, or of the texts in decode, of these parts.
  [[nodiscard]] int32_t n_tokens(std::span<const Part> of, bool in_decode) const;
  /// Of them those that are proposed.
  [[nodiscard]] int32_t n_proposed(std::span<const Part> of) const;
};

/// Groups of sequences wait, then run in slots, of which a group takes as many as it may have
/// sequences, until they have finished. Each plan
///   - admits waiting ones, larger priority first, then in order of arrival, while there are slots
///     and room in the caches, taking what these know of them; one whose prefix is just being
///     computed by another waits for it (limits.ends_together: of the last ones those first that
///     may generate most, so that slots do not stay empty at the end),
///   - has a token chosen for each running sequence, or several where its group proposes some, that
///     is worth its time (SpeculationGate) and there is room to spare, and processes prompts in
///     chunks beside them, so many tokens that no step is long (StepBudget),
///   - preempts, when room runs out, the running group of the least priority, the latest first: it
///     waits again and recomputes what the caches have not kept.
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
/// Where steps of sequences in decode alone follow each other, each may be planned ahead: before
/// the groups have accepted what the one before chose. A group that ends with that one, though
/// nobody could know, has no part in the later one any more.
///
/// It knows of a step only what it planned and what it is told of its end: processed(), then
/// follow() or fail() for each part, then end_step(). Several may be under way, of different
/// entries. Not thread-safe.
class SchedulingPolicy {
 public:
  using Entry = SchedulerEntry;
  using Outcome = SchedulerOutcome;
  using Part = StepPlan::Part;

  /// config: of the model that `caches`, which must outlive the policy, are for. `copy` is called
  /// by plan().
  SchedulingPolicy(SequenceCaches& caches, const ModelConfig& config, const SchedulerLimits& limits,
                   SequenceCaches::CopyPages copy);
  SchedulingPolicy(const SchedulingPolicy&) = delete;
  SchedulingPolicy& operator=(const SchedulingPolicy&) = delete;
  /// Gives back what running entries hold, and forgets known texts.
  ~SchedulingPolicy();

  /// As Scheduler has them.
  void add(Entry& entry);
  void remove(Entry& entry);
  [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }
  [[nodiscard]] int32_t n_waiting() const { return n_waiting_; }
  [[nodiscard]] int32_t n_running() const { return n_running_; }
  /// All but steps and their time.
  [[nodiscard]] const SchedulerCounts& counts() const { return counts_; }

  /// How many steps are to be under way at a time.
  [[nodiscard]] size_t n_turns() const;
  /// Plans the next step; the plan must stay where it is until end_step(). beside_another: one is
  /// under way, at whose end room may be given back. There is nothing to do where the plan has no
  /// parts.
  void plan(StepPlan& step, bool beside_another);

  /// Plans the step after `before`, the only one under way, ahead. Returns false, with nothing
  /// changed, where it is to be planned once `before` has ended, as others could take part, or
  /// tokens be proposed, then, or somebody's next token depends on the one before.
  [[nodiscard]] bool plan_ahead(StepPlan& step, StepPlan& before);

  /// A part was processed: counts what it has of prompts and lets others share it. Before the group
  /// accepts what was chosen.
  void processed(const StepPlan& step, const Part& part);
  /// Parts were processed as a batch, whose hidden states are still there, and their groups have
  /// accepted what was chosen: tells the drafter. Before follow().
  void tell_drafter(const StepPlan& step, std::span<const Part> parts);
  /// The part's group has accepted tokens, and its sequences go on from these parents, if
  /// `has_tokens`. Of proposed tokens those stay that the text has now.
  void follow(const StepPlan& step, const Part& part, bool has_tokens,
              std::span<const int32_t> parents);
  /// The entry cannot go on and leaves.
  /// is_of_device: it was the device that could not do it.
  void fail(Entry& entry, std::string_view error, bool is_of_device = false);
  /// Likewise the entry of a part.
  void fail(const StepPlan& step, const Part& part, std::string_view error,
            bool is_of_device = false);
  void fail_all(std::string_view error);
  /// A step failed that was planned ahead, or followed by one that was: its entries begin again,
  /// and do without from now on.
  void begin_again(const StepPlan& step);
  /// The step is over for those that it ran, and for those that it had no room for.
  void end_step(const StepPlan& step);
  /// Notes how long the device took for these parts and n_source_tokens of their sources.
  void measured(const StepPlan& step, std::span<const Part> parts, int32_t n_source_tokens,
                double seconds);
  /// The step that was measured last took so long from its beginning to the next one's, with what
  /// the host did for it; nothing: no other one followed at once.
  void ended(std::optional<double> seconds);

  /// What became of entries since the last call.
  [[nodiscard]] std::vector<Outcome> take_outcomes();

 private:
  struct Order {
    bool operator()(const Entry* a, const Entry* b) const;
  };

  void begin_plan(StepPlan& step);
  void begin_outgrown_again();
  void admit();
  [[nodiscard]] std::vector<Entry*> candidates() const;
  [[nodiscard]] SequenceCaches::Prefix find_prefix(const Entry& entry) const;
  [[nodiscard]] bool prefix_is_coming(const Entry& entry) const;
  [[nodiscard]] CacheCost missing(const Entry& entry) const;
  [[nodiscard]] CacheCost promise(const Entry& entry) const;
  bool try_start(Entry& entry, CacheCost& promised);
  void choose_entries();
  void split(Entry& entry);
  void plan_sources();
  void choose_proposals();
  [[nodiscard]] std::vector<int32_t> wanted_proposals(std::span<Entry* const> decoding,
                                                      int32_t n_decoding, bool ahead);
  [[nodiscard]] bool can_be_followed(const StepPlan& step) const;
  void plan_decode_ahead(Entry& entry, const NewTokens& before, int32_t row);
  void take_back(Entry& entry, const StepPlan& ended);
  [[nodiscard]] int32_t proposable(int32_t n_decoding) const;
  [[nodiscard]] ProposalOffer offer_of(const Entry& entry, bool ahead, int32_t& n_more);
  void propose(std::span<Entry* const> entries);
  bool read(const SequenceGroup& group);
  void plan_decode();
  void plan_decode(Entry& entry);
  void plan_prefill();
  int32_t plan_prefill(Entry& entry, int32_t budget);
  [[nodiscard]] int32_t cut(const Entry& entry, const Sequence& sequence, int32_t n_pending,
                            int32_t n_room) const;
  void begin_part(Entry& entry, bool is_decode);
  NewTokens& add_input(size_t i, int32_t n_tokens, NewTokens::Logits logits);
  void end_part();
  void order_by_adapter();
  void choose_states();
  [[nodiscard]] bool reads_states() const;
  [[nodiscard]] bool reads_texts() const;
  [[nodiscard]] bool may_follow(const SequenceGroup& group) const;
  [[nodiscard]] int32_t most_followed() const;
  int32_t take_pages(Sequence& sequence, int32_t n_tokens);
  void preempt(Entry& entry);
  void give_slots(Entry& entry, std::span<const int32_t> parents);
  void remember(Entry& entry, size_t i);
  void leave(Entry& entry, bool keep_texts);

  SequenceCaches& caches_;
  const ModelConfig& config_;
  SchedulerLimits limits_;
  SequenceCaches::CopyPages copy_;
  StepBudget alone_;   // for prompts
  StepBudget beside_;  // the same where sequences are in decode
  SpeculationGate gate_;
  CommonRates rates_;
  // The last step in decode, until it has ended.
  struct MeasuredStep {
    int32_t n_sequences = 0;
    int32_t n_proposed = 0;
    double seconds = 0;  // of the device
  };
  std::optional<MeasuredStep> measured_;
  double seconds_of_proposing_ = 0;  // since a step ended
  std::set<Entry*, Order> waiting_;
  std::vector<Entry*> running_;  // in Order
  bool may_admit_ = false;       // since a group came or left, it was not tried
  int32_t n_waiting_ = 0;
  int32_t n_running_ = 0;
  StepPlan* step_ = nullptr;       // that is being planned
  bool beside_another_ = false;    // likewise
  int32_t n_proposable_ = 0;       // tokens that it may still have
  bool is_short_of_room_ = false;  // which only a step under way gives back
  std::vector<Outcome> outcomes_;
  SchedulerCounts counts_;
};

}  // namespace faststream
