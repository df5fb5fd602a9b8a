// How long something takes.
#pragma once

#include <chrono>

namespace faststream {

class Stopwatch {
 public:
  /// Since it was made.
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
};

}  // namespace faststream
