// The merges that a word waits for, the next one first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace faststream {

/// A priority queue of numbers for which most of what is added comes after all that is there, as
/// merges of merged tokens do: that waits in a list, which is sorted when its turn comes. A heap of
/// a million numbers takes three times as long, for it misses the cache at each step.
class MergeQueue {
 public:
  /// Empties it for about n numbers at a time.
  void reset(size_t n) {
    now_.clear();
    later_.clear();
    early_.clear();
    now_.reserve(n);
    later_.reserve(n);
    next_ = 0;
    bound_ = 0;
  }

  void push(uint64_t key) {
    if (key > bound_ || now_.empty()) {
      later_.push_back(key);
    } else {
      early_.push_back(key);
      std::push_heap(early_.begin(), early_.end(), std::greater<>());
    }
  }

  /// Takes the smallest one, if there is any.
  bool pop(uint64_t& key) {
    if (next_ == now_.size() && early_.empty()) {
      if (later_.empty()) return false;
      now_.swap(later_);
      later_.clear();
      std::sort(now_.begin(), now_.end());
      next_ = 0;
      bound_ = now_.back();
    }
    if (early_.empty() || (next_ < now_.size() && now_[next_] <= early_.front())) {
      key = now_[next_++];
      return true;
    }
    key = early_.front();
    std::pop_heap(early_.begin(), early_.end(), std::greater<>());
    early_.pop_back();
    return true;
  }

 private:
  std::vector<uint64_t> now_;    // in order, from next_ on
  std::vector<uint64_t> later_;  // all above bound_, in any order
  std::vector<uint64_t> early_;  // a heap of what was added since and is not above it
  size_t next_ = 0;
  uint64_t bound_ = 0;  // the largest of now_
};

}  // namespace faststream
