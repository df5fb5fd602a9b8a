// Threads that are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace faststream {

/// A fixed set of threads that share one loop at a time. The calling thread is one of them. Between
/// loops (a decode step has hundreds) the others spin briefly, then yield, then sleep.
///
/// A thread that the system does not run just then does not hold a loop up: threads take pieces as
/// they come, and a loop ends when the pieces that were taken are done. On a busy machine it is as
/// fast as the threads that get a processor.
class ThreadPool {
 public:
  /// threads >= 1, the caller included.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] int size() const;

  /// Splits [0, count) into pieces that are multiples of `grain` and, but for a single grain, at
  /// most `longest`, and runs task(thread, first, last) for each, in order of their starts: long
  /// ones first, to which threads come as they are done with others. `thread` in [0, size()) is one
  /// that runs no other piece meanwhile; the caller's is 0. Returns when all pieces are done, or
  /// rethrows the exception of one, after which no piece is begun. Not reentrant.
  void parallel_for(int64_t count, int64_t grain, int64_t longest,
                    const std::function<void(int, int64_t, int64_t)>& task);

  /// The same for tasks that do not ask which thread runs them, of any length.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t, int64_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace faststream
