#include "cli/batch/batch_submitters.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <set>

#include "unit/support/refused_threads.h"

namespace faststream::cli {
namespace {

TEST(BatchSubmitters, SubmitEachRequestOnce) {
  constexpr uint64_t kLines = 100;
  std::mutex mutex;
  std::multiset<uint64_t> lines;
  std::latch all(kLines);
  BatchSubmitters submitters(3, [&](uint64_t line, Request request) {
    {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(std::get<std::string>(request.prompt), std::to_string(line));
      lines.insert(line);
    }
    all.count_down();
  });
  for (uint64_t line = 1; line <= kLines; ++line) {
    submitters.add(line, {.prompt = std::to_string(line)});
  }
  all.wait();
  const std::lock_guard lock(mutex);
  for (uint64_t line = 1; line <= kLines; ++line) EXPECT_EQ(lines.count(line), 1U);
}

TEST(BatchSubmitters, WorkSideBySide) {
  std::latch both(2);
  std::latch done(2);
  BatchSubmitters submitters(2, [&](uint64_t, const Request&) {
    both.arrive_and_wait();  // for ever, if one came after the other
    done.count_down();
  });
  submitters.add(1, {});
  submitters.add(2, {});
  done.wait();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
// Sanitizers need more memory than any limit leaves.
TEST(BatchSubmitters, WorkWithTheThreadsThatTheSystemGives) {
  const auto submit_with_little_memory = [] {
    leave_room_for_two_threads();
    std::latch all(50);
    BatchSubmitters submitters(1000, [&](uint64_t, const Request&) { all.count_down(); });
    for (uint64_t line = 1; line <= 50; ++line) submitters.add(line, {});
    all.wait();
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(submit_with_little_memory(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace faststream::cli
