#include "support/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/machine.h"
#include "unit/support/refused_threads.h"

namespace faststream {
namespace {

TEST(ThreadPool, CoversARangeExactlyOnce) {
  ThreadPool pool(4);
  for (const int64_t count : {0, 1, 5, 16, 17, 1000}) {
    for (const int64_t grain : {1, 4, 7, 5000}) {
      for (const int64_t longest : {1, 10, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        std::atomic<bool> as_wanted = true;
        pool.parallel_for(count, grain, longest, [&](int, int64_t first, int64_t last) {
          if (first % grain != 0 || (last % grain != 0 && last != count) ||
              last - first > std::max(grain, longest)) {
            as_wanted = false;
          }
          for (int64_t i = first; i < last; ++i) {
            ++visits[static_cast<size_t>(i)];
          }
        });
        for (const auto& visit : visits) {
          ASSERT_EQ(visit, 1) << "count " << count << ", grain " << grain;
        }
        EXPECT_TRUE(as_wanted) << "count " << count << ", grain " << grain << ", longest "
                               << longest;
      }
    }
  }
}

TEST(ThreadPool, GivesEachThreadANumberOfItsOwn) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<std::atomic<int>> users(static_cast<size_t>(threads));
    std::vector<std::thread::id> ids(static_cast<size_t>(threads));
    std::atomic<bool> shared = false;
    for (int round = 0; round < 100; ++round) {
      pool.parallel_for(20, 1, 1, [&](int thread, int64_t, int64_t) {
        const auto i = static_cast<size_t>(thread);
        if (++users.at(i) != 1) shared = true;
        if (ids[i] == std::thread::id()) ids[i] = std::this_thread::get_id();
        if (ids[i] != std::this_thread::get_id()) shared = true;
        --users[i];
      });
    }
    EXPECT_FALSE(shared);
    EXPECT_TRUE(ids[0] == std::this_thread::get_id() || ids[0] == std::thread::id());
  }
}

TEST(ThreadPool, WakesThreadsThatHaveGoneToSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> arrived = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    pool.parallel_for(3, 1, 1, [&](int, int64_t, int64_t) {
      ++arrived;  // nobody leaves until each piece has a thread of its own
      while (arrived < 3 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "threads did not come";
  }
}

TEST(ThreadPool, RethrowsAnExceptionAndStaysUsable) {
  ThreadPool pool(4);
  for (const int64_t count : {1, 100}) {
    std::atomic<int64_t> begun = 0;
    std::string message;
    try {
      pool.parallel_for(count, 1, [&](int64_t, int64_t) {
        ++begun;
        throw std::runtime_error("a piece failed");
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "a piece failed");
    EXPECT_LE(begun, 4) << "pieces were begun after the failure";
  }
  std::atomic<int64_t> sum = 0;
  pool.parallel_for(10, 1, [&](int64_t first, int64_t last) { sum += last - first; });
  EXPECT_EQ(sum, 10);
}

TEST(ThreadPool, WorksWithFarMoreThreadsThanProcessors) {
  ThreadPool pool(4 * available_threads() + 1);
  int64_t total = 0;
  for (int round = 0; round < 200; ++round) {
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(100, 3, [&](int64_t first, int64_t last) { sum += last - first; });
    total += sum;
  }
  EXPECT_EQ(total, 200 * 100);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
// Sanitizers need more memory than any limit leaves.
TEST(ThreadPool, EndsThreadsThatHaveStartedWhereTheSystemRefusesMore) {
  const auto start_too_many = [] {
    leave_room_for_two_threads();
    try {
      const ThreadPool pool(1000);
    } catch (const std::system_error&) {
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(0), "");
}
#endif

/// The calling thread, and those that it starts, run on one processor during the lifetime.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_ = {};
};

/// Processor time of this process, all threads, in seconds: what other processes take from the
/// machine does not count.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Two runs on a busy machine once were eight times slower than one after the other: every loop
// waited until each thread had had a turn, and burnt the processor time that it waited for.
TEST(ThreadPool, DoesNotWaitForThreadsThatHaveNoProcessor) {
  const OneProcessor one;
  const auto cost_of_loops = [](int threads) {
    ThreadPool pool(threads);
    std::atomic<uint64_t> result = 0;
    const double start = cpu_seconds();
    for (int loop = 0; loop < 1000; ++loop) {
      pool.parallel_for(8, 1, 1, [&](int, int64_t first, int64_t) {
        uint64_t value = static_cast<uint64_t>(first);
        for (int i = 0; i < 1000; ++i) value = value * 6364136223846793005U + 1;
        result += value;
      });
    }
    return cpu_seconds() - start;
  };
  double ratio = 1e9;  // the best of a few tries
  for (int i = 0; i < 5 && ratio > 2; ++i) {
    ratio = std::min(ratio, cost_of_loops(4) / cost_of_loops(1));
  }
  EXPECT_LT(ratio, 2) << "times the processor time of one thread";
}

}  // namespace
}  // namespace faststream
