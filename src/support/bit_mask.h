// Sets of numbers as bits of words: number n is bit n % 32 of word n / 32. Masks of tokens are
// such.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace faststream {

inline constexpr size_t kMaskWordBits = 32;

/// Words of a set of numbers below n.
constexpr size_t mask_words(std::integral auto n) {
  return (static_cast<size_t>(n) + kMaskWordBits - 1) / kMaskWordBits;
}

/// Numbers are not negative, and have a word in the mask.
constexpr bool has_bit(std::span<const uint32_t> mask, std::integral auto n) {
  const auto bit = static_cast<size_t>(n);
  return (mask[bit / kMaskWordBits] >> bit % kMaskWordBits & 1U) != 0;
}
constexpr void set_bit(std::span<uint32_t> mask, std::integral auto n) {
  const auto bit = static_cast<size_t>(n);
  mask[bit / kMaskWordBits] |= 1U << bit % kMaskWordBits;
}
constexpr void clear_bit(std::span<uint32_t> mask, std::integral auto n) {
  const auto bit = static_cast<size_t>(n);
  mask[bit / kMaskWordBits] &= ~(1U << bit % kMaskWordBits);
}

/// Adds the numbers of another mask, which has no more words.
constexpr void add_bits(std::span<uint32_t> mask, std::span<const uint32_t> more) {
  for (size_t w = 0; w < more.size(); ++w) mask[w] |= more[w];
}

/// How many numbers there are.
constexpr size_t count_bits(std::span<const uint32_t> mask) {
  size_t count = 0;
  for (const uint32_t word : mask) {
    if (word != 0) count += static_cast<size_t>(std::popcount(word));  // most words have none
  }
  return count;
}

}  // namespace faststream
