// What one call of a tokenizer may take. Files of tokenizers are not trusted: a pattern can take
// exponential time, and steps that each write ten characters for one exponential memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/check_interrupted.h"

namespace faststream {

class TokenizerBudget {
 public:
  /// For a text of that size: half a second of this thread's time and 4 microseconds a byte; steps
  /// may make 64 kB, and 32 bytes of each byte. Real ones make 22 at most: of an Arabic phrase that
  /// is one character of 3 bytes NFKC makes 33, each of which becomes a character of two.
  /// `check_interrupted`, if not null, must outlive it.
  explicit TokenizerBudget(size_t text_size, const CheckInterrupted* check_interrupted = nullptr);

  /// To be called for each match of a pattern: most calls only count, some look().
  void spend() { work_on(kWorkPerLook / 64); }
  /// To be called for each text that a step takes, or part of one: most calls only count, some
  /// look().
  void take(size_t bytes) { work_on(kWorkPerLook / 4096 + bytes); }
  /// Throws Error when all time is spent.
  void look() const;

  /// To be called for what a step has made of what is not made for good yet. Throws Error for more
  /// than is left.
  void check_size(size_t bytes) const {
    if (bytes > left_) refuse_size();
  }
  /// For a text, or a part of it, that no step changes any more. Throws Error for more than is
  /// left.
  void make(size_t bytes) {
    check_size(bytes);
    left_ -= bytes;
  }

 private:
  static constexpr size_t kWorkPerLook = size_t{1} << 18;  // bytes, some milliseconds at most

  void work_on(size_t bytes) {
    work_ += bytes;
    if (work_ < kWorkPerLook) return;
    work_ = 0;
    look();
  }
  [[noreturn]] static void refuse_size();

  int64_t end_;  // of the thread's clock, in nanoseconds
  size_t left_;  // bytes that may be made
  size_t work_ = 0;
  const CheckInterrupted* check_interrupted_;
};

}  // namespace faststream
