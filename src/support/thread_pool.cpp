// A region starts when the caller raises `epoch_` and ends when `pending_` reaches zero. Both sides
// spin for some tens of microseconds, which is the usual gap between two operations of a decode
// step, then wait in the kernel (std::atomic::wait is a futex), so that an idle or oversubscribed
// machine is not burdened.
#include "support/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace faststream {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(40);

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// Returns when `value` is no longer `old`: spins first unless `spin` is false, then sleeps.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, bool spin) {
  if (spin) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  explicit Impl(int threads)
      : errors(static_cast<size_t>(threads)), spin(threads <= available_threads()) {
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

  void work(int index) {
    for (uint32_t seen = 0;;) {
      wait_for_change(epoch, seen, spin);
      ++seen;  // the next region starts only after this thread has reported the end of this one
      if (stopping) return;
      perform(index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  void perform(int index) {
    try {
      (*task)(index);
    } catch (...) {
      errors[static_cast<size_t>(index)] = std::current_exception();
    }
  }

  std::vector<std::exception_ptr> errors;  // one a thread, null but after a failure
  const std::function<void(int)>* task = nullptr;
  bool spin;
  bool stopping = false;  // read after epoch changed
  alignas(64) std::atomic<uint32_t> epoch = 0;
  alignas(64) std::atomic<uint32_t> pending = 0;  // workers that are still in the region
  std::vector<std::thread> workers;               // last: they use all of the above
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return static_cast<int>(impl_->errors.size()); }

void ThreadPool::run(const std::function<void(int)>& task) {
  Impl& pool = *impl_;
  const auto n_workers = static_cast<uint32_t>(pool.workers.size());
  if (n_workers == 0) {
    task(0);
    return;
  }
  pool.task = &task;
  pool.pending.store(n_workers, std::memory_order_relaxed);
  pool.epoch.fetch_add(1, std::memory_order_release);
  pool.epoch.notify_all();
  pool.perform(0);
  for (uint32_t left; (left = pool.pending.load(std::memory_order_acquire)) != 0;) {
    wait_for_change(pool.pending, left, pool.spin);
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : pool.errors) {
    if (first == nullptr) first = error;
    error = nullptr;
  }
  if (first != nullptr) std::rethrow_exception(first);
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& task) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  // Pieces shrink towards the end (guided scheduling): few of them while there is much to do, small
  // ones to even out threads that are slower.
  const int64_t n_grains = (count - 1) / grain + 1;
  const int64_t threads = size();
  if (threads == 1 || n_grains == 1) {
    task(0, count);
    return;
  }
  std::atomic<int64_t> next = 0;  // in grains
  run([&](int) {
    int64_t first = next.load(std::memory_order_relaxed);
    while (first < n_grains) {
      const int64_t take = std::max<int64_t>(1, (n_grains - first) / (2 * threads));
      if (!next.compare_exchange_weak(first, first + take, std::memory_order_relaxed)) continue;
      task(first * grain, std::min(count, (first + take) * grain));
      first = next.load(std::memory_order_relaxed);
    }
  });
}

namespace {

/// CPUs that the version 2 control group at `path` may use ("max 100000" or "150000 100000"),
/// rounded up; INT_MAX without a limit.
int quota_of(const std::string& path) {
  std::ifstream file(path + "/cpu.max");
  std::string quota;
  int64_t period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) {
    return std::numeric_limits<int>::max();
  }
  int64_t microseconds = 0;
  if (!(std::istringstream(quota) >> microseconds) || microseconds <= 0) {
    return std::numeric_limits<int>::max();
  }
  return static_cast<int>(
      std::min<int64_t>((microseconds - 1) / period + 1, std::numeric_limits<int>::max()));
}

/// The strictest quota of this process's control group and its parents.
int cgroup_quota() {
  const std::string root = "/sys/fs/cgroup";
  std::string group;
  std::ifstream membership("/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  int quota = quota_of(root);
  while (group.size() > 1) {
    quota = std::min(quota, quota_of(root + group));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return quota;
}

}  // namespace

int available_threads() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int allowed = sched_getaffinity(0, sizeof mask, &mask) == 0
                          ? CPU_COUNT(&mask)
                          : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(allowed, cgroup_quota()));
}

}  // namespace faststream
