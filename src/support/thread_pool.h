// Threads that are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace faststream {

/// A fixed set of threads that run one parallel region at a time. The calling thread is one of
/// them. Workers spin briefly between regions (a decode step has hundreds), then sleep.
class ThreadPool {
 public:
  /// threads >= 1, the caller included.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] int size() const;

  /// Runs task(i) for i in [0, size()), one on each thread, and returns when all have. An exception
  /// of any task is rethrown (the first by index). Not reentrant.
  void run(const std::function<void(int)>& task);

  /// Splits [0, count) into pieces that are multiples of `grain` and runs task(first, last) for
  /// each, balanced dynamically.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t, int64_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Hardware threads this process may use (its affinity mask and cgroup quota), at least 1.
int available_threads();

}  // namespace faststream
