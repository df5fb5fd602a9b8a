// How many tokens are worth proposing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/speculation.h"

namespace faststream {

/// What something took the last times, but for what else the machine did meanwhile: a quarter took
/// no longer.
class UsualTime {
 public:
  /// now: in steps.
  void add(double seconds, int64_t now);
  [[nodiscard]] double seconds() const { return usual_; }
  /// Whether that is not too long ago.
  [[nodiscard]] bool is_known(int64_t now) const;

 private:
  std::vector<double> last_;
  size_t next_ = 0;  // that is replaced
  double usual_ = 0;
  int64_t time_ = 0;  // of the last one
};

/// What steps take, as measured, by the sequences in decode and the tokens proposed for them;
/// before there is a measurement, that a token costs a part of what it costs alone.
class StepCost {
 public:
  /// A step in which sequences in decode had a token each, and these proposals.
  void measured(int32_t n_sequences, int32_t n_proposed, double seconds);
  /// What such a step will take; 0 where nothing is known yet of as many sequences without
  /// proposals.
  [[nodiscard]] double seconds(int32_t n_sequences, int32_t n_proposed) const;
  /// Steps that were measured.
  [[nodiscard]] int64_t now() const { return now_; }

 private:
  using Key = std::pair<int32_t, int32_t>;  // sequences, proposals; see size_class()

  std::map<Key, UsualTime> steps_;
  int64_t now_ = 0;
};

/// Chooses how many tokens each text proposes, so that the step gives most tokens a second: from
/// what texts offer, with the share that was accepted of each so far, and what steps took.
///
/// Whatever these say, proposals may have cost a hundredth of the time at most: what steps with
/// some took beyond what their tokens would have taken without is borrowed from an account that
/// grows by so much. What a drafter takes to read texts is borrowed from another one, into which
/// goes what proposals gain, too: where they gain less than that, few texts are read.
class SpeculationGate {
 public:
  /// Of a step in decode without prompts. Steps whose proposals were not computed say nothing.
  void measured(int32_t n_sequences, int32_t n_proposed, double seconds);
  /// Of a step that measured() was told of with proposals: tokens that texts got.
  void accepted(int32_t n_sequences, int32_t n_tokens);
  /// The host spent so long on offers and their choice; once a step.
  void spent(double seconds);
  /// A pass of a draft.
  void drafted(const DraftPass& pass);

  /// A step took so long, whatever was in it.
  void passed(double seconds);
  /// A drafter read what a step left, beside drafts, for so long.
  void read_states(double seconds);
  /// A pass by which a drafter read a text, beside drafts.
  void read(const DraftPass& pass);
  /// Texts that a drafter is to follow at most: all, or one, to learn what it gains, or none.
  [[nodiscard]] int32_t most_followed() const;

  /// Whether a step with so many sequences in decode may have proposals.
  [[nodiscard]] bool is_open(int32_t n_sequences) const;
  /// Of each offer how many tokens are to be proposed, n_most together at most. n_sequences: in
  /// decode, those that offer nothing included.
  [[nodiscard]] std::vector<int32_t> choose(std::span<const ProposalOffer> offers,
                                            int32_t n_sequences, int32_t n_most) const;

 private:
  double price(const DraftPass& pass);
  [[nodiscard]] double pass_seconds(int32_t n_tokens) const;
  void gain(double seconds);

  StepCost cost_;
  std::map<int32_t, UsualTime> passes_;  // of a drafter, by tokens
  UsualTime choice_;
  double account_ = 0;     // seconds
  double of_reading_ = 0;  // likewise: what may be read for
  double plain_ = 0;       // of a step without proposals, as the last one that was measured
  int32_t n_plain_ = 1;    // its sequences
  bool has_account_ = false;
  int32_t n_since_plain_ = 0;  // steps since one without proposals
};

}  // namespace faststream
