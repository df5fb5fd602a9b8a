// Numbers for lists of numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace faststream::rules {

/// Keeps each list once, under a number from 0 on. A span is valid until the next intern().
class Interner {
 public:
  /// The list's number, and whether it is new.
  struct Found {
    int32_t id = 0;
    bool is_new = false;
  };
  Found intern(std::span<const uint32_t> list) {
    if (2 * (starts_.size() + 1) > slots_.size()) grow();
    const size_t mask = slots_.size() - 1;
    for (size_t slot = hash(list) & mask;; slot = (slot + 1) & mask) {
      int32_t& id = slots_[slot];
      if (id < 0) {
        id = static_cast<int32_t>(starts_.size() - 1);
        data_.insert(data_.end(), list.begin(), list.end());
        starts_.push_back(data_.size());
        return {id, true};
      }
      if (std::ranges::equal((*this)[id], list)) return {id, false};
    }
  }
  [[nodiscard]] std::span<const uint32_t> operator[](int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::span(data_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
  }
  void clear() {
    data_.clear();
    starts_.assign(1, 0);
    std::ranges::fill(slots_, -1);
  }
  [[nodiscard]] size_t size() const { return starts_.size() - 1; }
  /// Of all lists together.
  [[nodiscard]] size_t length() const { return data_.size(); }
  [[nodiscard]] size_t bytes() const {
    return (data_.size() + slots_.size()) * sizeof(uint32_t) + starts_.size() * sizeof(size_t);
  }

 private:
  static size_t hash(std::span<const uint32_t> list) {
    uint64_t h = list.size() + 0x9E3779B97F4A7C15U;
    for (const uint32_t value : list) {
      h = (h ^ value) * 0xBF58476D1CE4E5B9U;
      h ^= h >> 29U;
    }
    return h;
  }
  void grow() {
    constexpr size_t kFirst = 64;
    slots_.assign(std::max(kFirst, 2 * slots_.size()), -1);
    const size_t mask = slots_.size() - 1;
    for (size_t i = 0; i + 1 < starts_.size(); ++i) {
      size_t slot = hash((*this)[static_cast<int32_t>(i)]) & mask;
      while (slots_[slot] >= 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<int32_t>(i);
    }
  }

  std::vector<uint32_t> data_;
  std::vector<size_t> starts_ = {0};
  std::vector<int32_t> slots_;  // open addressing; -1: free
};

}  // namespace faststream::rules
