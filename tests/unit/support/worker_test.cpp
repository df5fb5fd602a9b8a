#include "support/worker.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "unit/support/refused_threads.h"

namespace faststream {
namespace {

TEST(Worker, RunsTasksInTheirOrderInOneOtherThread) {
  constexpr int kTasks = 100;
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  std::vector<std::future<void>> done;
  Worker worker;
  for (int i = 0; i < kTasks; ++i) {
    done.push_back(worker.run([&order, &threads, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    }));
  }
  for (std::future<void>& task : done) task.get();
  ASSERT_EQ(order.size(), size_t{kTasks});
  for (int i = 0; i < kTasks; ++i) {
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
    EXPECT_EQ(threads[static_cast<size_t>(i)], threads.front());
  }
  EXPECT_NE(threads.front(), std::this_thread::get_id());
}

TEST(Worker, GivesATasksExceptionToWhoWaitsAndGoesOn) {
  Worker worker;
  std::future<void> failing = worker.run([] { throw std::runtime_error("no"); });
  std::future<void> sound = worker.run([] {});
  EXPECT_THROW(failing.get(), std::runtime_error);
  sound.get();
}

TEST(Worker, IsDestroyedAfterAllOfItsTasks) {
  int n_done = 0;
  {
    Worker worker;
    for (int i = 0; i < 10; ++i) (void)worker.run([&n_done] { ++n_done; });
  }
  EXPECT_EQ(n_done, 10);
}

TEST(Worker, IsNoneWhereTheSystemGivesNoThread) {
  const RefusedThreads refused;
  EXPECT_THROW({ const Worker worker; }, std::system_error);
}

}  // namespace
}  // namespace faststream
