#include "engine/lookup_proposer.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace faststream {

// Returns where the text's last n_ tokens ended before; 0: nowhere that is known.
size_t LookupProposer::Places::replace(std::span<const int32_t> text) {
  if (text.size() < n_) return 0;
  if (4 * text.size() > ends_.size()) make_room(text);
  const std::span<const int32_t> tokens = text.last(n_);
  const auto key =
      uint64_t{static_cast<uint32_t>(tokens.front())} << 32U | static_cast<uint32_t>(tokens.back());
  const int shift = 64 - std::countr_zero(ends_.size());
  const size_t slot = key * 0x9E3779B97F4A7C15U >> shift;  // Fibonacci hashing (Knuth)
  const size_t end = std::exchange(ends_[slot], static_cast<uint32_t>(text.size()));
  return end > 0 && std::ranges::equal(text.subspan(end - n_, n_), tokens) ? end : 0;
}

// For a text twice as long as this one.
void LookupProposer::Places::make_room(std::span<const int32_t> text) {
  ends_.assign(std::bit_ceil(8 * text.size()), 0);
  for (size_t end = n_; end < text.size(); ++end) (void)replace(text.first(end));
}

void LookupProposer::read(std::span<const int32_t> text, CommonRates& common) {
  while (n_read_ < text.size()) {
    const int32_t token = text[n_read_++];
    const size_t of_one = ones_.replace(text.first(n_read_));
    const size_t of_two = twos_.replace(text.first(n_read_));
    const bool fits = length_ > 0 && text[place_] == token;
    if (length_ > 0 && n_read_ > n_prompt_) {
      const size_t r = rate_of(length_);
      rates_[r].note(1, fits ? 1 : 0, common.lookup[r]);
    }
    if (fits) {
      ++place_;
      ++length_;
    } else {
      place_ = of_two > 0 ? of_two : of_one;
      length_ = of_two > 0 ? 2 : of_one > 0 ? 1 : 0;
    }
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
  ProposalOffer offer{.most = n_most};
  for (size_t i = 0; i < static_cast<size_t>(n_most); ++i) {
    const size_t r = rate_of(length_ + i);
    offer.acceptance[i] = rates_[r].value(common.lookup[r]);
  }
  return offer;
}

// Which rate tokens have behind so many that stood before.
size_t LookupProposer::rate_of(size_t length) const {
  return std::min(static_cast<size_t>(std::bit_width(length - 1)), rates_.size() - 1);
}

}  // namespace faststream
