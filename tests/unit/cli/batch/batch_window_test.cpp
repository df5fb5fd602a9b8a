#include "cli/batch/batch_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cli/batch/batch_memory.h"
#include "cli/batch/batch_progress.h"
#include "unit/program/caught_interrupts.h"

namespace faststream::cli {
namespace {

using namespace std::chrono_literals;

BatchItem item(uint64_t line, size_t memory = 1, size_t samples = 1) {
  return {.head = {.id = line, .line = line}, .samples = samples, .memory = memory};
}

constexpr WindowLimits kNine{.lines = 9, .bytes = 9, .busy_samples = 9};

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
  BatchWindow window(true, kNine);
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
  BatchWindow window(false, kNine);
  for (uint64_t line = 1; line <= 3; ++line) EXPECT_TRUE(window.add(item(line)));
  for (const uint64_t line : {3, 1}) window.finish(line, Result());
  EXPECT_EQ(take_all(window), (std::vector<uint64_t>{3, 1}));
}

TEST(BatchWindow, IsExhaustedWhenItIsClosedAndEmpty) {
  BatchWindow window(true, kNine);
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
    BatchWindow window(ordered, kNine);
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
  BatchWindow window(true, {.lines = 1, .bytes = 9, .busy_samples = 1});
  EXPECT_TRUE(window.add(item(1)));
  window.withdraw(1);
  EXPECT_TRUE(window.add(item(2)));
}

TEST(BatchWindow, LetsAsManyLinesInAsThereIsRoomFor) {
  BatchWindow window(true, {.lines = 2, .bytes = 10, .busy_samples = 0});
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

// Whether the window takes the line at once: where signals end what waits.
bool takes_at_once(BatchWindow& window, BatchItem line) {
  const CaughtInterrupts caught;
  std::raise(SIGINT);
  try {
    return window.add(std::move(line));
  } catch (const Interrupted&) {
    return false;
  }
}

// Adds lines of so many samples and bytes until one has to wait; the number that came in.
uint64_t add_until_full(BatchWindow& window, size_t memory, size_t samples) {
  uint64_t line = 1;
  while (takes_at_once(window, item(line, memory, samples))) ++line;
  return line - 1;
}

TEST(BatchWindow, KeepsSlotsBusyThoughResultsMayBeLarge) {
  BatchWindow few(true, {.lines = 100, .bytes = 1000, .busy_samples = 8});
  EXPECT_EQ(add_until_full(few, 10'000, 1), 8U);
  BatchWindow several(true, {.lines = 100, .bytes = 1000, .busy_samples = 8});
  EXPECT_EQ(add_until_full(several, 10'000, 3), 3U);
  BatchWindow small(true, {.lines = 100, .bytes = 1000, .busy_samples = 8});
  EXPECT_EQ(add_until_full(small, 100, 1), 10U);
}

TEST(BatchWindow, CountsAFinishedLineAsLargeAsItsResultIs) {
  for (const auto& [text_bytes, expected] : {std::pair(1, true), std::pair(5000, false)}) {
    BatchWindow window(true, {.lines = 100, .bytes = 2000, .busy_samples = 1});
    EXPECT_TRUE(window.add(item(1, 1)));
    EXPECT_TRUE(window.add(item(2, 1900)));
    Result result;
    result.outputs.resize(1);
    result.outputs[0].text.assign(static_cast<size_t>(text_bytes), 'x');
    window.finish(2, std::move(result));
    EXPECT_EQ(takes_at_once(window, item(3, 1000)), expected);
  }
}

TEST(BatchMemory, GrowsWithSamplesTokensAndWhatIsToldOfThem) {
  Request request;
  request.prompt = "Once";
  request.max_tokens = 100;
  const size_t one = bytes_in_work(request, 1000);
  EXPECT_GT(one, 100U * 8);
  EXPECT_LT(one, 20'000U);
  const auto with = [&](auto&& change) {
    Request other = request;
    change(other);
    return bytes_in_work(other, 1000);
  };
  EXPECT_GT(with([](Request& r) { r.n = 128; }), 127 * one);
  EXPECT_GT(with([](Request& r) { r.best_of = 128; }), 127 * one);
  EXPECT_GT(with([](Request& r) { r.logprobs = 20; }), 100U * 20 * sizeof(TokenLogprob));
  EXPECT_GT(with([](Request& r) { r.stop = {std::string(4096, 'x')}; }), 4096U);
  EXPECT_GT(with([](Request& r) { r.prompt = std::string(500, 'x'); }), one + 500 * 4);
  EXPECT_EQ(with([](Request& r) { r.max_tokens = -1; }),
            with([](Request& r) { r.max_tokens = 5000; }));  // the context
}

TEST(BatchMemory, OfAResultIsNotMoreThanWasReckonedWith) {
  Request request;
  request.prompt = "Once";
  request.max_tokens = 1000;
  request.n = 4;
  request.logprobs = 20;
  Result result;
  for (int sample = 0; sample < request.n; ++sample) {
    Output& output = result.outputs.emplace_back();
    for (int token = 0; token < request.max_tokens; ++token) {
      output.text += "word ";
      output.tokens.push_back(token);
      output.logprobs.push_back({.chosen = {}, .top = std::vector<TokenLogprob>(20)});
    }
  }
  EXPECT_LE(bytes_of(result), bytes_in_work(request, 65536));
  EXPECT_GT(bytes_of(result), 4U * 1000 * 20 * sizeof(TokenLogprob));
}

TEST(BatchWindow, PassesEveryLineOnceThroughThreeThreads) {
  constexpr uint64_t kLines = 20'000;
  for (const bool ordered : {true, false}) {
    BatchWindow window(ordered, {.lines = 64, .bytes = 1 << 20, .busy_samples = 8});
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
  EXPECT_EQ(batch_summary({.lines = 1, .failed = 1, .tokens = 1}, 2, false),
            "batch: 1 line done, 1 failed, 1 token in 2.00 s, 0.5 tokens/s");
  EXPECT_EQ(batch_summary({.lines = 2, .done_before = 40}, 0, false),
            "batch: 2 lines done, 40 done before, 0 failed, 0 tokens in 0.00 s, 0.0 tokens/s");
  EXPECT_EQ(batch_summary({.lines = 2}, 0, true),
            "batch interrupted: 2 lines done, 0 failed, 0 tokens in 0.00 s, 0.0 tokens/s");
}

}  // namespace
}  // namespace faststream::cli
