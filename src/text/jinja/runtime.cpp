#include "text/jinja/runtime.h"

#include <algorithm>
#include <ctime>

#include "text/jinja/failure.h"

namespace faststream::jinja {
namespace {

// A hundred messages take about 10,000 steps.
constexpr size_t kMaxSteps = 5'000'000;
constexpr size_t kStepsBetweenChecks = 1024;  // of the clock
constexpr double kMaxSeconds = 0.5;           // of processor time, and for each byte of the input:
constexpr double kMaxSecondsAByte = 1e-7;
// Made in all, so in memory at once at most.
constexpr size_t kMaxBytes = size_t{64} << 20U;
constexpr size_t kMaxCopies = 32;  // of the input
constexpr int kDeepestCall = 600;  // some 600 KB of stack

// The processor time of this thread: others may keep it waiting.
double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

LocalTime local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return {.year = local.tm_year + 1900,
          .month = local.tm_mon + 1,
          .day = local.tm_mday,
          .hour = local.tm_hour,
          .minute = local.tm_min,
          .second = local.tm_sec};
}

Runtime::Runtime(LocalTime now, size_t input_bytes)
    : now_(now),
      steps_left_(kMaxSteps + input_bytes),
      steps_at_check_(steps_left_ - kStepsBetweenChecks),
      seconds_at_start_(seconds_now()),
      seconds_(kMaxSeconds + kMaxSecondsAByte * static_cast<double>(input_bytes)),
      bytes_left_(kMaxBytes + kMaxCopies * input_bytes) {}

void Runtime::spend_steps(size_t n) {
  if (n > steps_left_) {
    throw Failure("it does not come to an end (after millions of steps)");
  }
  steps_left_ -= n;
  if (steps_left_ < steps_at_check_) check_clock();
}

void Runtime::check_clock() {
  steps_at_check_ = steps_left_ - std::min(steps_left_, kStepsBetweenChecks);
  if (seconds_now() - seconds_at_start_ > seconds_) {
    throw Failure("it does not come to an end (it took half a second)");
  }
}

void Runtime::spend_bytes(size_t n) {
  if (n > bytes_left_) throw Failure("it makes too much text or too many values");
  bytes_left_ -= n;
  spend_steps(n / 64);
}

void Runtime::spend_search(size_t text, size_t wanted) {
  constexpr size_t kBytesAStep = 4096;  // as memcmp() compares them
  const size_t places = text > wanted ? text - wanted : 0;
  spend_steps(text / 16);
  spend_steps(std::min(places, kMaxSteps * 64) / 64 * std::min(wanted, text) / (kBytesAStep / 64));
}

Runtime::Depth::Depth(Runtime& runtime) : runtime_(runtime) {
  if (runtime_.depth_ == kDeepestCall) {
    throw Failure("its macros, loops or expressions are in one another too deep");
  }
  ++runtime_.depth_;
}

Value Runtime::text(Text text) {
  constexpr size_t kOverhead = 64;
  spend_bytes(text.size() + text.runs().size() * sizeof(Text::Run) + kOverhead);
  return Value(std::move(text));
}

Value Runtime::list(std::vector<Value> items, List::Type type) {
  spend_bytes((items.size() + 2) * sizeof(Value));
  return Value(List(std::move(items), type));
}

}  // namespace faststream::jinja
