// Prompt lookup: a text goes on as it did where its end stood before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation.h"
#include "engine/speculation_gate.h"
#include "engine/suffix_automaton.h"

namespace faststream {

/// Proposes what followed the latest known place where the longest suffix of a text stood before,
/// as Saxena's prompt lookup does with n-grams of one length. How likely that fits depends on the
/// suffix's length: each has a rate of its own.
class LookupProposer {
 public:
  /// Looks at a text, which has grown since the last call.
  void read(std::span<const int32_t> text);
  /// n tokens that may come next, no more than offered; valid until the next call of a member.
  std::span<const int32_t> propose(std::span<const int32_t> text, int32_t n);
  /// What propose() has at most, and how likely these tokens fit; once a step.
  [[nodiscard]] ProposalOffer offer(int32_t n_most);
  /// Of the n_proposed tokens that were proposed since read() the first n_accepted fitted.
  void note(int32_t n_proposed, int32_t n_accepted);

 private:
  [[nodiscard]] size_t rate() const;

  SuffixAutomaton automaton_;
  SuffixAutomaton::Match match_;
  std::vector<int32_t> proposed_;
  // By the length of the suffix: 1, 2, up to 4, up to 8, more.
  std::array<AcceptanceRate, 5> rates_ = {AcceptanceRate(0.2F), AcceptanceRate(0.4F),
                                          AcceptanceRate(0.6F), AcceptanceRate(0.75F),
                                          AcceptanceRate(0.9F)};
};

}  // namespace faststream
