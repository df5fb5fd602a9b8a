#include "cli/batch/batch_submitters.h"

#include "support/start_threads.h"

namespace faststream::cli {

BatchSubmitters::BatchSubmitters(int threads,
                                 std::function<void(uint64_t line, Request request)> submit)
    : submit_(std::move(submit)), threads_(start_threads(threads, [this] { work(); })) {}

BatchSubmitters::~BatchSubmitters() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void BatchSubmitters::add(uint64_t line, Request request) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(line, std::move(request));
  }
  wake_.notify_one();
}

void BatchSubmitters::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    auto [line, request] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    submit_(line, std::move(request));
  }
}

}  // namespace faststream::cli
