#include "support/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace faststream {
namespace {

TEST(ThreadPool, RunsATaskOnceOnEveryThread) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    std::vector<std::thread::id> ids(static_cast<size_t>(threads));
    for (int round = 0; round < 100; ++round) {
      pool.run([&](int i) {
        ++calls[static_cast<size_t>(i)];
        ids[static_cast<size_t>(i)] = std::this_thread::get_id();
      });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 100));
    EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), ids.size());
    EXPECT_EQ(ids[0], std::this_thread::get_id());
  }
}

TEST(ThreadPool, CoversARangeExactlyOnce) {
  ThreadPool pool(4);
  for (const int64_t count : {0, 1, 5, 16, 17, 1000}) {
    for (const int64_t grain : {1, 4, 7, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      std::atomic<bool> aligned = true;
      pool.parallel_for(count, grain, [&](int64_t first, int64_t last) {
        if (first % grain != 0 || (last % grain != 0 && last != count)) aligned = false;
        for (int64_t i = first; i < last; ++i) {
          ++visits[static_cast<size_t>(i)];
        }
      });
      for (const auto& visit : visits) {
        ASSERT_EQ(visit, 1) << "count " << count << ", grain " << grain;
      }
      EXPECT_TRUE(aligned) << "count " << count << ", grain " << grain;
    }
  }
}

TEST(ThreadPool, WakesThreadsThatHaveGoneToSleep) {
  ThreadPool pool(3);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run([&](int i) {
      if (i == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the caller waits
      ++calls;
    });
  }
  EXPECT_EQ(calls, 15);
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndStaysUsable) {
  ThreadPool pool(4);
  std::string message;
  try {
    pool.run([](int i) {
      if (i >= 1) throw std::runtime_error("thread " + std::to_string(i));
    });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  EXPECT_EQ(message, "thread 1");
  std::atomic<int> calls = 0;
  pool.run([&](int) { ++calls; });
  EXPECT_EQ(calls, 4);
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

TEST(AvailableThreads, IsAtLeastOneAndAtMostTheHardware) {
  EXPECT_GE(available_threads(), 1);
  EXPECT_LE(available_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace faststream
