#include "support/start_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <system_error>

#include "unit/support/refused_threads.h"

namespace faststream {
namespace {

TEST(StartThreads, EachRunsTheWork) {
  std::atomic<int> n = 0;
  start_threads(3, [&n] { ++n; }).clear();  // which joins them
  EXPECT_EQ(n, 3);
}

TEST(StartThreads, ThrowsWhereTheSystemGivesNone) {
  const RefusedThreads refused;
  EXPECT_THROW(start_threads(3, [] {}), std::system_error);
}

}  // namespace
}  // namespace faststream
