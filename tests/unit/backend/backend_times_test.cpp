// Measuring: times of operations, on every backend.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "unit/backend/backend_fixture.h"

namespace faststream {
namespace {

class BackendTimes : public BackendTest {};

TEST_P(BackendTimes, AreOfEachOperationBetweenTwoNotes) {
  constexpr size_t kSmall = size_t{1} << 12;
  constexpr size_t kLarge = size_t{1} << 24;
  const Buffer memory = backend_->allocate(kLarge);
  const std::vector<std::byte> zeros(kLarge);
  backend_->copy_to_device(memory.get(), zeros.data(), kLarge);
  backend_->read_memory(memory.get(), kSmall);
  for (int run = 0; run < 2; ++run) {  // what was noted before is forgotten
    backend_->note_time();
    backend_->read_memory(memory.get(), kSmall);
    backend_->note_time();
    backend_->read_memory(memory.get(), kLarge);
    backend_->note_time();
    const std::vector<double> seconds = backend_->take_times();
    ASSERT_EQ(seconds.size(), 2U);
    EXPECT_GT(seconds[0], 0);
    EXPECT_GT(seconds[1], 0);
  }
  EXPECT_TRUE(backend_->take_times().empty());
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendTimes);

}  // namespace
}  // namespace faststream
