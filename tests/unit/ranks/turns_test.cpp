#include "ranks/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace faststream {
namespace {

TEST(Turns, ComeInOrderToWhoeverAsks) {
  Turns turns;
  std::atomic<bool> waits = false;
  std::atomic<bool> has_ended = false;
  int n_before = 0;                 // of the other thread's turns while this one waits
  std::vector<int> all_before(51);  // of odd length, for its median: a busy machine may
                                    // stop a thread just before it asks
  std::thread asking([&] {
    for (int& before : all_before) {
      waits = true;
      const std::scoped_lock lock(turns);
      waits = false;
      before = std::exchange(n_before, 0);
    }
    has_ended = true;
  });
  while (!has_ended) {
    const std::scoped_lock lock(turns);
    if (waits) ++n_before;
    std::this_thread::yield();
  }
  asking.join();
  std::ranges::nth_element(all_before, all_before.begin() + 25);
  EXPECT_LE(all_before[25], 2);
}

}  // namespace
}  // namespace faststream
