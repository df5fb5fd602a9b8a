// A thread beside the caller's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace faststream {

/// Runs tasks one after the other, in the order in which they come. Destruction waits for them.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// The future is ready when the task is done, and has its exception.
  std::future<void> run(std::function<void()> task);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by `mutex_`:
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all others
};

}  // namespace faststream
