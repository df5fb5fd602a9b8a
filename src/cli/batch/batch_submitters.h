// Threads that hand over the requests of a batch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace faststream::cli {

/// Turning prompts into tokens takes processor time, and what generates should not wait for it: so
/// the requests that one thread reads are submitted by several. What waits here is not limited;
/// BatchWindow limits it.
class BatchSubmitters {
 public:
  /// `submit` is called by all of the threads at once, and must not throw. There are fewer threads
  /// where the system gives no more; throws std::system_error where it gives none.
  BatchSubmitters(int threads, std::function<void(uint64_t line, Request request)> submit);
  BatchSubmitters(const BatchSubmitters&) = delete;
  BatchSubmitters& operator=(const BatchSubmitters&) = delete;
  /// Gives up what no thread has begun with.
  ~BatchSubmitters();

  void add(uint64_t line, Request request);

 private:
  void work();

  std::function<void(uint64_t line, Request request)> submit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<uint64_t, Request>> waiting_;  // guarded by mutex_, as is the next
  bool stopping_ = false;
  std::vector<std::jthread> threads_;  // last: they use all others
};

}  // namespace faststream::cli
