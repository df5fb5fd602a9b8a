// What the scheduler runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "engine/acceptance_rate.h"
#include "engine/request.h"
#include "engine/speculation.h"

namespace faststream {

/// Sequences of one request that wait, run, are preempted and fail together, and of which a step
/// gives each a token or none. A sample is a group of one; a beam search begins as one, the prompt,
/// and becomes several, of which some end and others fork.
///
/// The scheduler keeps the pages. After each step of the group's it is told from which sequence
/// each goes on, and never moves a page for that.
class SequenceGroup {
 public:
  SequenceGroup() = default;
  SequenceGroup(const SequenceGroup&) = delete;
  SequenceGroup& operator=(const SequenceGroup&) = delete;
  virtual ~SequenceGroup() = default;

  /// The most sequences that it may have at a time: the slots that it takes.
  [[nodiscard]] virtual int32_t width() const = 0;
  /// Those it has now, all different and of the same length; at least one unless finished().
  [[nodiscard]] virtual size_t n_sequences() const = 0;
  /// Of sequence i: the prompt and what has been generated.
  [[nodiscard]] virtual const std::vector<int32_t>& tokens(size_t i) const = 0;
  /// What all its sequences look at, where the model has an encoder; else empty.
  [[nodiscard]] virtual std::span<const int32_t> source() const = 0;
  /// Which adapter its sequences have, as TextKind has it.
  [[nodiscard]] virtual int32_t adapter() const { return 0; }
  /// How its next token is chosen. The edits are valid until the next accept().
  [[nodiscard]] virtual SamplingRow sampling_row(size_t i) const = 0;
  /// Whether that has masks, which take their time. Groups may make them at the same time.
  [[nodiscard]] virtual bool has_masks() const { return false; }
  /// How many tokens a group that always has one sequence could propose now, no more than it may
  /// still have, and how likely these come next: as `common` says until its own texts have shown
  /// otherwise, of which it tells `common`.
  [[nodiscard]] virtual ProposalOffer offer(CommonRates& /*common*/) { return {}; }
  /// What it will probably offer once it has its next token, which nobody knows yet.
  [[nodiscard]] virtual ProposalOffer offer_ahead(CommonRates& /*common*/) { return {}; }
  /// Proposes `n` tokens, no more than it offered, where it finds some by itself; returns whether
  /// it does.
  virtual bool propose(int32_t /*n*/) { return false; }
  /// Proposes these, no more than it offered, or the first of them.
  virtual void suppose(std::span<const int32_t> /*tokens*/) {}
  /// What was proposed since it offered; valid until something else is. A step may look at the
  /// first of these together with the text's last token: it chooses a token after each of them.
  [[nodiscard]] virtual std::span<const int32_t> proposed() const { return {}; }
  /// How the token after these is chosen, the first that are proposed. The edits are valid until
  /// the next accept().
  [[nodiscard]] virtual SamplingRow sampling_row_after(std::span<const int32_t> proposed) const {
    SamplingRow row = sampling_row(0);
    row.position += proposed.size();
    return row;
  }

  /// Whether its next token is the last one, whatever that will be.
  [[nodiscard]] virtual bool ends_with_next() const { return false; }
  /// How the token after the next n is chosen, whatever these will be, of a group that always has
  /// one sequence; nothing where that depends on them, or none will follow. The edits are valid
  /// until the next accept().
  [[nodiscard]] virtual std::optional<SamplingRow> sampling_row_ahead(int32_t /*n*/) const {
    return {};
  }

  /// Takes what the device chose for each sequence, which may finish the group; where proposed
  /// tokens were looked at, what it chose after each of these, too, of which all counts up to the
  /// first choice that is not what was proposed. Returns from which of them each of the group's
  /// sequences goes on now; valid until the next call. Throws Error when it cannot go on. The
  /// device waits for this, and not for write(). Groups may do this at the same time.
  virtual std::span<const int32_t> accept(std::span<SampledToken> sampled) = 0;
  /// Makes text of what was accepted since the last call. Returns what can be printed now; valid
  /// until the next accept().
  virtual std::string_view write() = 0;
  /// The last token of its only or its best text, which has one.
  [[nodiscard]] virtual int32_t newest_token() const = 0;

  /// Of an only text's tokens so far, where they are asked for.
  [[nodiscard]] virtual std::span<const PositionLogprobs> logprobs() const { return {}; }

  /// Ends the group; nothing if it has ended.
  virtual void finish(FinishReason reason) = 0;
  [[nodiscard]] virtual bool finished() const = 0;
  /// What was generated, once finished; the best first where there is an order. Call once.
  virtual std::vector<Output> take_outputs() = 0;
};

}  // namespace faststream
