// Places for the terms of sums over ranks, in memory that all ranks have alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace faststream {

/// Places of small sums, in turn. A place's words are unset until they have their terms, and a
/// kernel makes those unset that the kernel before it has used. All ranks reserve the same places
/// in the same order, but may divide them differently among their kernels.
///
/// A rank may write terms of its present kernel to all others: it has begun this kernel, so it had
/// terms of all sums before it from all of them. Who gave the last of those was in a kernel of at
/// most kMost(), and had ended the one before, of as many, and with it made unset all before that:
/// what lies three kernels back.
class TermRing {
 public:
  struct Part {
    int64_t at = 0;
    int64_t bytes = 0;
  };

  explicit TermRing(int ranks) : most_(int64_t{ranks} * kMostOfRank) {}

  [[nodiscard]] int64_t bytes() const { return kKernels * most_; }
  /// Whether the present kernel may have another place of so many bytes: a multiple of 16.
  [[nodiscard]] bool has_room(int64_t bytes) const { return next(bytes) + bytes - begin_ <= most_; }
  /// Where it is. An empty kernel has room for what one may be at most.
  int64_t reserve(int64_t bytes) {
    const int64_t first = next(bytes);
    end_ = first + bytes;
    return first % this->bytes();
  }
  /// A kernel has all that was reserved since the one before. Returns what that one has used, which
  /// this one is to make unset: one part, or two.
  std::array<Part, 2> launch() {
    const auto [first, end] = std::exchange(used_, {begin_, end_});
    begin_ = end_;
    const int64_t at = first % bytes();
    const int64_t behind = std::max<int64_t>(0, at + (end - first) - bytes());
    return {Part{at, end - first - behind}, Part{0, behind}};
  }

 private:
  static constexpr int64_t kKernels = 4;
  static constexpr int64_t kMostOfRank = int64_t{3} << 20;  // Llama-3-70B in one kernel: 2.6 MB

  // Where so many bytes come next, all in a row. Counted on and on.
  [[nodiscard]] int64_t next(int64_t bytes) const {
    const int64_t left = this->bytes() - end_ % this->bytes();
    return bytes <= left ? end_ : end_ + left;
  }

  int64_t most_;
  int64_t begin_ = 0;  // of the present kernel's
  int64_t end_ = 0;
  std::pair<int64_t, int64_t> used_;  // by the kernel before
};

}  // namespace faststream
