#include "text/tokenizer/budget.h"

#include <ctime>

#include "support/error.h"

namespace faststream {
namespace {

constexpr size_t kSmallText = size_t{64} << 10;
constexpr size_t kMostGrowth = 32;
constexpr int64_t kNanoseconds = 500'000'000;
constexpr int64_t kNanosecondsPerByte = 4000;

int64_t thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

TokenizerBudget::TokenizerBudget(size_t text_size, const CheckInterrupted* check_interrupted)
    : end_(thread_time() + kNanoseconds + static_cast<int64_t>(text_size) * kNanosecondsPerByte),
      left_(kSmallText + kMostGrowth * text_size),
      check_interrupted_(check_interrupted) {}

void TokenizerBudget::look() const {
  if (check_interrupted_ != nullptr && *check_interrupted_) (*check_interrupted_)();
  if (thread_time() < end_) return;
  throw Error("the tokenizer takes too long on this text; shorten the text");
}

void TokenizerBudget::refuse_size() {
  throw Error(
      "the tokenizer's rules make this text more than 32 times as long; is the tokenizer the "
      "model's original one?");
}

}  // namespace faststream
