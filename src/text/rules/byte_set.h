// A set of bytes.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace faststream::rules {

class ByteSet {
 public:
  constexpr ByteSet() = default;
  /// The bytes from `first` to `last`.
  constexpr ByteSet(uint8_t first, uint8_t last) {
    for (int byte = first; byte <= last; ++byte) add(static_cast<uint8_t>(byte));
  }

  constexpr void add(uint8_t byte) { words_[byte / 64] |= uint64_t{1} << (byte % 64); }
  constexpr void add(const ByteSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  constexpr void remove(uint8_t byte) { words_[byte / 64] &= ~(uint64_t{1} << (byte % 64)); }
  [[nodiscard]] constexpr ByteSet without(const ByteSet& other) const {
    ByteSet set = *this;
    for (size_t w = 0; w < words_.size(); ++w) set.words_[w] &= ~other.words_[w];
    return set;
  }
  [[nodiscard]] constexpr bool has(uint8_t byte) const {
    return (words_[byte / 64] >> (byte % 64) & 1U) != 0;
  }
  [[nodiscard]] constexpr bool is_empty() const {
    return (words_[0] | words_[1] | words_[2] | words_[3]) == 0;
  }

  /// Of a set that is not empty.
  [[nodiscard]] constexpr uint8_t first() const {
    size_t w = 0;
    while (words_[w] == 0) ++w;
    return static_cast<uint8_t>(64 * w + static_cast<size_t>(std::countr_zero(words_[w])));
  }
  /// Likewise.
  [[nodiscard]] constexpr uint8_t last() const {
    size_t w = words_.size() - 1;
    while (words_[w] == 0) --w;
    return static_cast<uint8_t>(64 * w + 63 - static_cast<size_t>(std::countl_zero(words_[w])));
  }

  /// Calls task(byte) for each in their order.
  template <class Task>
  constexpr void for_each(const Task& task) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        task(static_cast<uint8_t>(64 * w + static_cast<size_t>(std::countr_zero(word))));
      }
    }
  }

  friend constexpr bool operator==(const ByteSet&, const ByteSet&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend constexpr auto operator<=>(const ByteSet&, const ByteSet&) = default;

 private:
  friend struct std::hash<ByteSet>;
  std::array<uint64_t, 4> words_ = {};
};

}  // namespace faststream::rules

template <>
struct std::hash<faststream::rules::ByteSet> {
  size_t operator()(const faststream::rules::ByteSet& set) const noexcept {
    uint64_t hash = 0;
    for (const uint64_t word : set.words_) hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    return hash ^ hash >> 32U;
  }
};
