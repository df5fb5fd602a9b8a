// Prompt lookup: a text goes on as it did where its end stood before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/acceptance_rate.h"
#include "engine/speculation.h"

namespace faststream {

/// Proposes what followed where the end of a text stood before, as Saxena's prompt lookup does:
/// where its last two tokens stood last, or else its last one, and from there on as long as the
/// text goes on as it did there. How likely that fits depends on how long it has gone on so: each
/// length has a rate of its own.
///
/// Where nothing was proposed, a text's next token tells what a proposal would have been worth.
/// So to learn that costs no step, and a text that begins to repeat is known at once.
class LookupProposer {
 public:
  /// n_prompt: the text's first tokens, which say nothing of how it goes on.
  explicit LookupProposer(size_t n_prompt) : n_prompt_(n_prompt) {}

  /// Of the n_proposed tokens that were proposed since read() the first n_accepted fitted. Before
  /// read() looks at these.
  void note(int32_t n_proposed, int32_t n_accepted, CommonRates& common);
  /// Looks at a text, which has grown since the last call, in constant time a token.
  void read(std::span<const int32_t> text, CommonRates& common);
  /// n tokens that may come next, no more than offered; valid until the next call of a member.
  std::span<const int32_t> propose(std::span<const int32_t> text, int32_t n);
  /// What propose() has at most, and how likely these tokens fit.
  [[nodiscard]] ProposalOffer offer(int32_t n_most, const CommonRates& common) const;
  /// The same of what it will have if the text's next token fits.
  [[nodiscard]] ProposalOffer offer_ahead(int32_t n_most, const CommonRates& common) const;

 private:
  void add(int32_t token);
  void make_room(std::span<const int32_t> text);
  void find(std::span<const int32_t> text);
  [[nodiscard]] size_t rate() const { return rate_of(length_); }
  [[nodiscard]] size_t rate_of(size_t length) const;

  size_t n_prompt_;
  // By a token's hash the end of the text up to where one such stood last, and for each token that
  // was read where one of its hash stood before; 0: nowhere.
  std::vector<uint32_t> latest_;
  std::vector<uint32_t> before_;
  size_t length_ = 0;  // tokens of its end that stood somewhere before, as far as was looked; or 0
  size_t place_ = 0;   // the token that followed there
  std::array<TextRate, 5> rates_;
  int32_t n_noted_ = 0;  // tokens to be read next of which these know
  std::vector<int32_t> proposed_;
};

}  // namespace faststream
