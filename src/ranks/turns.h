// A lock for threads that look for something again and again.
#pragma once

#include <atomic>
#include <cstdint>

namespace faststream {

/// A mutex whose threads have it in the order in which they asked. With another one a thread that
/// takes it again at once has it before one that waits is awake: where it gives up its processor
/// meanwhile, as MPI does between ranks that are more than there are processors, nearly always.
class Turns {
 public:
  void lock() {
    const uint32_t own = asked_.fetch_add(1);
    for (uint32_t now = served_; now != own; now = served_) served_.wait(now);
  }
  void unlock() {
    served_.fetch_add(1);
    served_.notify_all();
  }

 private:
  std::atomic<uint32_t> asked_ = 0;
  std::atomic<uint32_t> served_ = 0;
};

}  // namespace faststream
