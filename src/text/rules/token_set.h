// A set of tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/bit_mask.h"

namespace faststream::rules {

/// A list as long as that takes less than bits.
class TokenSet {
 public:
  /// words: of a mask of all tokens.
  explicit TokenSet(size_t words) : words_(words) {}

  /// Adds a token, which is not in the set.
  void add(int32_t token) {
    if (bits_.empty() && few_.size() < std::min(kFew, words_)) {
      few_.push_back(token);
    } else {
      make_bits();
      set_bit(bits_, token);
    }
  }
  void add(std::span<const uint32_t> mask) {
    make_bits();
    add_bits(bits_, mask);
  }
  void add_to(std::span<uint32_t> mask) const {
    add_bits(mask, bits_);
    for (const int32_t token : few_) set_bit(mask, token);
  }
  /// Of memory.
  [[nodiscard]] size_t bytes() const { return (bits_.size() + few_.size()) * sizeof(uint32_t); }

 private:
  static constexpr size_t kFew = 512;

  void make_bits() {
    if (!bits_.empty()) return;
    bits_.resize(words_);
    for (const int32_t token : few_) set_bit(bits_, token);
    few_ = {};
  }

  size_t words_;
  std::vector<int32_t> few_;    // else none
  std::vector<uint32_t> bits_;  // of many
};

}  // namespace faststream::rules
