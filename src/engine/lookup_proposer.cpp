#include "engine/lookup_proposer.h"

#include <algorithm>
#include <bit>

namespace faststream {

void LookupProposer::read(std::span<const int32_t> text) {
  for (const int32_t token : text.subspan(static_cast<size_t>(automaton_.n_tokens()))) {
    match_ = automaton_.append(token);
  }
}

// From where the earlier place reaches the end of the text, it goes on with itself: a passage that
// is repeated without end.
std::span<const int32_t> LookupProposer::propose(std::span<const int32_t> text, int32_t n) {
  proposed_.clear();
  const std::span<const int32_t> after = text.subspan(static_cast<size_t>(match_.end));
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    proposed_.push_back(after[i % after.size()]);
  }
  return proposed_;
}

ProposalOffer LookupProposer::offer(int32_t n_most) {
  if (match_.length == 0) return {};
  rates_[rate()].age();
  return {.most = n_most, .acceptance = rates_[rate()].value()};
}

void LookupProposer::note(int32_t n_proposed, int32_t n_accepted) {
  rates_[rate()].note(n_proposed, n_accepted);
}

size_t LookupProposer::rate() const {
  const auto length = static_cast<uint32_t>(std::max(match_.length, 1));
  return std::min<size_t>(static_cast<size_t>(std::bit_width(length - 1)), rates_.size() - 1);
}

}  // namespace faststream
