#include "program/bus_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "support/mapped_file.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

// Without the handler the process is killed, and silent.
TEST(BusError, EndsTheProgramWithASentenceWhenAMappedFileWasTruncated) {
  const TemporaryFolder folder;
  const auto path = folder / "model.bin";
  write_bytes(path, std::string(size_t{1} << 20, 'x'));
  const auto read_what_is_gone = [&] {
    report_bus_errors("faststream-run");
    const MappedFile file(path);
    std::filesystem::resize_file(path, 5);
    _exit(static_cast<int>(file.bytes()[size_t{1} << 19]));
  };
  EXPECT_EXIT(read_what_is_gone(), testing::ExitedWithCode(1),
              "^faststream-run: the model file.* was truncated .*; copy it again.*\n$");
}

TEST(BusError, LeavesOtherSignalsOfThatNumberDeadly) {
  const auto send = [] {
    report_bus_errors("faststream-run");
    std::raise(SIGBUS);
    _exit(0);
  };
  EXPECT_EXIT(send(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace faststream
