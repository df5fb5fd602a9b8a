// A loop begins when the caller opens the gate and raises `epoch_`. Workers that come while the
// gate is open count themselves in, take pieces until none is left, and count themselves out. The
// caller takes pieces too, then closes the gate and waits for those that are inside: a worker that
// was asleep or preempted is not waited for unless it holds a piece.
//
// Whoever waits spins for some microseconds, which is the usual gap between two operations of a
// decode step; then offers its processor to other threads and processes, which costs nothing where
// there are none; then sleeps in the kernel (std::atomic::wait is a futex).
#include "support/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace faststream {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpinTime = std::chrono::microseconds(10);
constexpr auto kYieldTime = std::chrono::microseconds(100);  // from the start of the wait

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// Returns when `value` is no longer `old`.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  const Clock::time_point start = Clock::now();
  for (auto waited = Clock::duration::zero(); waited < kYieldTime; waited = Clock::now() - start) {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_briefly();
    }
    if (waited > kSpinTime) std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  using Task = std::function<void(int, int64_t, int64_t)>;

  explicit Impl(int threads) : size(threads) {
    workers.reserve(static_cast<size_t>(threads) - 1);
    try {
      for (int i = 1; i < threads; ++i) {
        workers.emplace_back([this, i] { work(i); });
      }
    } catch (...) {  // the system refuses more threads
      stop();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(); }

  void stop() {
    stopping = true;
    epoch.fetch_add(1, std::memory_order_release);
    epoch.notify_all();
    for (std::thread& worker : workers) {
      worker.join();
    }
  }

  void work(int thread) {
    for (uint32_t seen = 0;;) {
      wait_for_change(epoch, seen);
      seen = epoch.load(std::memory_order_acquire);
      if (stopping) return;
      if (!enter()) continue;
      take_pieces(thread);
      if (gate.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) gate.notify_one();
    }
  }

  /// False when the gate is closed.
  bool enter() {
    uint32_t inside = gate.load(std::memory_order_relaxed);
    while (inside < kClosed) {
      if (gate.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void take_pieces(int thread) {
    int64_t first = next.load(std::memory_order_relaxed);
    while (first < n_grains) {
      // Pieces shrink towards the end (guided scheduling): few of them while there is much to do,
      // small ones to even out threads that are slower.
      const int64_t take = std::clamp<int64_t>((n_grains - first) / (2 * size), 1, most_grains);
      if (!next.compare_exchange_weak(first, first + take, std::memory_order_relaxed)) continue;
      try {
        (*task)(thread, first * grain, std::min(count, (first + take) * grain));
      } catch (...) {
        next.store(n_grains, std::memory_order_relaxed);
        const std::scoped_lock lock(error_mutex);
        if (error == nullptr) error = std::current_exception();
      }
      first = next.load(std::memory_order_relaxed);
    }
  }

  const int64_t size;
  std::atomic<bool> stopping = false;  // before the last change of epoch
  alignas(64) std::atomic<uint32_t> epoch = 0;
  // Workers inside of the loop; kClosed more when no other may enter.
  static constexpr uint32_t kClosed = 1U << 31;
  alignas(64) std::atomic<uint32_t> gate = kClosed;

  // The loop. Constant but for `next` while the gate is open or somebody is inside.
  alignas(64) std::atomic<int64_t> next = 0;  // grain that nobody has taken
  int64_t n_grains = 0;
  int64_t grain = 1;
  int64_t most_grains = 1;  // of a piece
  int64_t count = 0;
  const Task* task = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;  // the first

  std::vector<std::thread> workers;  // last: they use all of the above
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return static_cast<int>(impl_->size); }

void ThreadPool::parallel_for(int64_t count, int64_t grain, int64_t longest,
                              const std::function<void(int, int64_t, int64_t)>& task) {
  if (count <= 0) return;
  Impl& pool = *impl_;
  pool.next.store(0, std::memory_order_relaxed);
  pool.grain = std::max<int64_t>(grain, 1);
  pool.n_grains = (count - 1) / pool.grain + 1;
  pool.most_grains = std::max<int64_t>(longest / pool.grain, 1);
  pool.count = count;
  pool.task = &task;
  if (pool.size == 1 || pool.n_grains == 1) {
    pool.take_pieces(0);
  } else {
    pool.gate.store(0, std::memory_order_release);
    pool.epoch.fetch_add(1, std::memory_order_release);
    pool.epoch.notify_all();
    pool.take_pieces(0);
    uint32_t inside = pool.gate.fetch_or(Impl::kClosed, std::memory_order_acq_rel);
    inside |= Impl::kClosed;
    while (inside != Impl::kClosed) {
      wait_for_change(pool.gate, inside);
      inside = pool.gate.load(std::memory_order_acquire);
    }
  }
  if (pool.error != nullptr) std::rethrow_exception(std::exchange(pool.error, nullptr));
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& task) {
  parallel_for(count, grain, count,
               [&task](int, int64_t first, int64_t last) { task(first, last); });
}

}  // namespace faststream
