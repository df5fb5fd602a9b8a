// Who proposes tokens for several texts at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence_group.h"

namespace faststream {

struct DraftTask {
  SequenceGroup* group = nullptr;  ///< of one sequence
  int32_t n_tokens = 0;            ///< that are wanted
};

/// Tokens of a text that a step processed, those that were proposed included. Of these as many
/// count as the text has now.
struct ProcessedTokens {
  const SequenceGroup* group = nullptr;  ///< of one sequence
  int32_t first = 0;                     ///< position in its text
  int32_t row = 0;                       ///< of its hidden state among those that are there
  int32_t n_tokens = 0;
};

class Drafter {
 public:
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  virtual ~Drafter() = default;

  /// Whether it reads hidden states that steps of the model leave, and is to be told of these, or
  /// texts alone.
  [[nodiscard]] virtual bool reads_states() const = 0;
  /// Where it reads texts: begins to follow a group's, so that to draft for it takes no long.
  /// Returns the passes that this took.
  virtual std::vector<DraftPass> read(const SequenceGroup& /*group*/) { return {}; }
  /// Where it reads states: a step of the model, whose hidden states are still there, was of these
  /// and of others. Texts that it does not follow yet it begins to follow as long as there are
  /// fewer than most_texts of which it does.
  virtual void processed(std::span<const ProcessedTokens> /*tokens*/, int32_t /*most_texts*/) {}
  /// Texts that it follows.
  [[nodiscard]] virtual int32_t n_followed() const = 0;
  /// Whether it could draft for this group without much to read before.
  [[nodiscard]] virtual bool follows(const SequenceGroup& group) const = 0;
  /// Tokens of a group that it follows which the first pass of a draft reads.
  [[nodiscard]] virtual int32_t n_unread(const SequenceGroup& group) const = 0;
  /// Has each group, which it follows, suppose as many tokens as are wanted of it, or fewer
  /// (SequenceGroup::suppose()). Returns the passes that this took, the first one first.
  virtual std::vector<DraftPass> draft(std::span<const DraftTask> tasks) = 0;
  /// The group leaves, or goes before it comes again.
  virtual void forget(const SequenceGroup& group) = 0;
};

}  // namespace faststream
