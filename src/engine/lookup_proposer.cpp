#include "engine/lookup_proposer.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace faststream {

void LookupProposer::read(std::span<const int32_t> text, CommonRates& common) {
  if (text.size() > latest_.size()) make_room(text);
  while (before_.size() < text.size()) {
    const int32_t token = text[before_.size()];
    const bool fits = length_ > 0 && text[place_] == token;
    if (n_noted_ > 0) {
      --n_noted_;
    } else if (length_ > 0 && before_.size() >= n_prompt_) {
      const size_t r = rate();
      rates_[r].note(1, fits ? 1 : 0, common.lookup[r]);
    }
    add(token);
    if (fits) {
      ++place_;
      ++length_;
    } else {
      find(text.first(before_.size()));
    }
  }
}

void LookupProposer::add(int32_t token) {
  const int shift = 32 - std::countr_zero(latest_.size());
  // Fibonacci hashing (Knuth).
  const uint32_t slot = static_cast<uint32_t>(token) * 0x9E3779B9U >> shift;
  before_.push_back(latest_[slot]);
  latest_[slot] = static_cast<uint32_t>(before_.size());
}

// For a text twice as long as this one.
void LookupProposer::make_room(std::span<const int32_t> text) {
  latest_.assign(std::bit_ceil(2 * text.size()), 0);
  const size_t n_read = std::exchange(before_, {}).size();
  before_.reserve(latest_.size());
  for (const int32_t token : text.first(n_read)) add(token);
}

// Looks for the text's last two tokens in it, from its end, or else the last one.
void LookupProposer::find(std::span<const int32_t> text) {
  constexpr int kMost = 256;  // places that it looks at: no token takes long
  length_ = 0;
  size_t end = before_.back();
  for (int i = 0; i < kMost && end > 0; ++i, end = before_[end - 1]) {
    if (text[end - 1] != text.back()) continue;  // of the same hash
    const bool are_two = end > 1 && text[end - 2] == text[text.size() - 2];
    if (length_ == 0 || are_two) {
      place_ = end;
      length_ = are_two ? 2 : 1;
    }
    if (are_two) return;
  }
}

// From where the earlier place reaches the end of the text, it goes on with itself: a passage that
// is repeated without end.
std::span<const int32_t> LookupProposer::propose(std::span<const int32_t> text, int32_t n) {
  proposed_.clear();
  const std::span<const int32_t> after = text.subspan(place_);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    proposed_.push_back(after[i % after.size()]);
  }
  return proposed_;
}

ProposalOffer LookupProposer::offer(int32_t n_most, const CommonRates& common) const {
  if (length_ == 0) return {};
  const size_t r = rate();
  return {.most = n_most, .acceptance = rates_[r].value(common.lookup[r])};
}

ProposalOffer LookupProposer::offer_ahead(int32_t n_most, const CommonRates& common) const {
  if (length_ == 0) return {};
  const size_t r = rate_of(length_ + 1);
  return {.most = n_most,
          .acceptance = rates_[r].value(common.lookup[r]),
          .chance = offer(n_most, common).acceptance};
}

// By as many tokens as stood before.
size_t LookupProposer::rate_of(size_t length) const {
  return std::min(static_cast<size_t>(std::bit_width(length - 1)), rates_.size() - 1);
}

void LookupProposer::note(int32_t n_proposed, int32_t n_accepted, CommonRates& common) {
  if (n_proposed == 0) return;
  const size_t r = rate();
  rates_[r].note(n_proposed, n_accepted, common.lookup[r]);
  n_noted_ = n_accepted < n_proposed ? n_accepted + 1 : n_accepted;
}

}  // namespace faststream
