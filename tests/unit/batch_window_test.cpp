#include "cli/batch/batch_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/batch/batch_progress.h"

namespace faststream {
namespace {

using namespace std::chrono_literals;

BatchItem item(uint64_t line, uint64_t bytes = 1) {
  return {.head = {.id = line, .line = line}, .bytes = bytes};
}

Result result_with_seed(uint64_t seed) {
  Result result;
  result.seed = seed;
  return result;
}

// Lines that can be taken now.
std::vector<uint64_t> take_all(BatchWindow& window) {
  std::vector<uint64_t> lines;
  while (const auto taken = window.take(0ms)) lines.push_back(taken->head.line);
  return lines;
}

TEST(BatchWindow, GivesResultsInTheOrderOfLines) {
  BatchWindow window(true, 9, 9);
  for (uint64_t line = 1; line <= 3; ++line) EXPECT_TRUE(window.add(item(line)));
  window.finish(2, result_with_seed(22));
  EXPECT_FALSE(window.take(0ms));
  window.finish(1, "bad");
  const auto first = window.take(0ms);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->error, "bad");
  EXPECT_FALSE(first->result);
  const auto second = window.take(0ms);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->result->seed, 22U);
  EXPECT_FALSE(window.take(0ms));
}

TEST(BatchWindow, GivesResultsAsTheyFinishIfUnordered) {
  BatchWindow window(false, 9, 9);
  for (uint64_t line = 1; line <= 3; ++line) EXPECT_TRUE(window.add(item(line)));
  for (const uint64_t line : {3, 1}) window.finish(line, Result());
  EXPECT_EQ(take_all(window), (std::vector<uint64_t>{3, 1}));
}

TEST(BatchWindow, IsExhaustedWhenItIsClosedAndEmpty) {
  BatchWindow window(true, 9, 9);
  EXPECT_TRUE(window.add(item(1)));
  EXPECT_FALSE(window.exhausted());
  window.close();
  EXPECT_FALSE(window.exhausted());
  EXPECT_FALSE(window.add(item(2)));
  window.finish(1, Result());
  EXPECT_FALSE(window.exhausted());
  EXPECT_EQ(take_all(window), std::vector<uint64_t>{1});
  EXPECT_TRUE(window.exhausted());
  window.wait_until_empty();
}

TEST(BatchWindow, GivesAfterAbandonmentOnlyWhatWasFinishedBefore) {
  for (const bool ordered : {true, false}) {
    BatchWindow window(ordered, 9, 9);
    for (uint64_t line = 1; line <= 4; ++line) EXPECT_TRUE(window.add(item(line)));
    window.finish(1, Result());
    window.finish(3, Result());
    window.abandon("first reason");
    window.abandon("second reason");
    window.finish(2, Result());
    EXPECT_FALSE(window.add(item(5)));
    EXPECT_FALSE(window.exhausted());
    EXPECT_EQ(take_all(window), ordered ? std::vector<uint64_t>{1} : (std::vector<uint64_t>{1, 3}));
    EXPECT_TRUE(window.exhausted());
    EXPECT_EQ(window.reason(), "first reason");
    window.wait_until_empty();
  }
}

TEST(BatchWindow, ForgetsALineThatIsWithdrawn) {
  BatchWindow window(true, 1, 9);
  EXPECT_TRUE(window.add(item(1)));
  window.withdraw(1);
  EXPECT_TRUE(window.add(item(2)));
}

TEST(BatchWindow, LetsAsManyLinesInAsThereIsRoomFor) {
  BatchWindow window(true, 2, 10);
  EXPECT_TRUE(window.add(item(1, 100)));  // alone, a line may be of any size
  std::atomic<int> added = 1;
  std::thread reader([&] {
    for (uint64_t line = 2; line <= 5; ++line) {
      EXPECT_TRUE(window.add(item(line, line == 4 ? 9 : 1)));
      ++added;
    }
  });
  const auto settle = [&](int expected) {
    while (added < expected) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(added, expected);
  };
  const auto take = [&](uint64_t line) {
    window.finish(line, Result());
    EXPECT_TRUE(window.take(1000ms));
  };
  settle(1);  // 100 bytes
  take(1);
  settle(3);  // 1 + 1 bytes, but two lines
  take(2);
  settle(4);  // 1 + 9 bytes
  take(3);
  settle(5);  // 9 + 1 bytes
  reader.join();
}

TEST(BatchWindow, PassesEveryLineOnceThroughThreeThreads) {
  constexpr uint64_t kLines = 20'000;
  for (const bool ordered : {true, false}) {
    BatchWindow window(ordered, 64, 1 << 20);
    std::vector<uint64_t> to_finish;
    std::mutex mutex;
    bool all_added = false;
    std::thread engine([&] {  // finishes what is there, last first
      for (bool done = false; !done;) {
        std::vector<uint64_t> batch;
        {
          const std::lock_guard lock(mutex);
          batch.swap(to_finish);
          done = all_added && batch.empty();
        }
        for (; !batch.empty(); batch.pop_back()) window.finish(batch.back(), Result());
      }
    });
    std::vector<uint64_t> taken;
    std::thread writer([&] {
      while (!window.exhausted()) {
        if (const auto next = window.take(100ms)) taken.push_back(next->head.line);
      }
    });
    for (uint64_t line = 1; line <= kLines; ++line) {
      ASSERT_TRUE(window.add(item(line)));
      const std::lock_guard lock(mutex);
      to_finish.push_back(line);
      all_added = line == kLines;
    }
    window.close();
    window.wait_until_empty();
    engine.join();
    writer.join();
    ASSERT_EQ(taken.size(), kLines);
    if (!ordered) std::sort(taken.begin(), taken.end());
    for (uint64_t line = 1; line <= kLines; ++line) ASSERT_EQ(taken[line - 1], line);
  }
}

TEST(BatchProgress, SaysHowFarItIsAndHowLongItTakes) {
  BatchCounts counts{.lines = 100, .tokens = 2000, .bytes = 250, .bytes_total = 1000};
  EXPECT_EQ(batch_progress(counts, 10), "batch  25% 100 lines, 200.0 tokens/s, 0:30 left");
  counts.failed = 3;
  counts.done_before = 50;
  counts.bytes_passed = 500;
  EXPECT_EQ(batch_progress(counts, 4000),
            "batch  75% 150 lines, 3 failed, 0.5 tokens/s, 1:06:40 left");
  counts.bytes_total = 0;
  EXPECT_EQ(batch_progress(counts, 10), "batch 150 lines, 3 failed, 200.0 tokens/s");
  EXPECT_EQ(batch_progress({.bytes_total = 10}, 0), "batch   0% 0 lines, 0.0 tokens/s");
}

TEST(BatchProgress, SumsUp) {
  EXPECT_EQ(batch_summary({.lines = 1, .failed = 1, .tokens = 1}, 2),
            "batch: 1 line done, 1 failed, 1 token in 2.00 s, 0.5 tokens/s");
  EXPECT_EQ(batch_summary({.lines = 2, .done_before = 40}, 0),
            "batch: 2 lines done, 40 done before, 0 failed, 0 tokens in 0.00 s, 0.0 tokens/s");
}

}  // namespace
}  // namespace faststream
