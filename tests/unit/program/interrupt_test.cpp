#include "program/interrupt.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>

#include "program/input.h"
#include "program/open_file.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};

TEST(Interrupts, EndAProgramAtOnceThatHasNothingToCleanUp) {
  for (const int signal : kInterrupts) {
    const auto send = [signal] {
      std::signal(signal, SIG_DFL);  // whatever the test inherited
      end_at_interrupts();
      std::raise(signal);
      _exit(0);
    };
    EXPECT_EXIT(send(), testing::ExitedWithCode(130), "^$");
  }
}

TEST(Interrupts, SetAFlagFromWhenTheyAreCaught) {
  for (const int signal : kInterrupts) {
    const auto send = [signal] {
      std::signal(signal, SIG_DFL);
      end_at_interrupts();
      catch_interrupts();
      std::raise(signal);
      _exit(interrupted() ? 7 : 0);
    };
    EXPECT_EXIT(send(), testing::ExitedWithCode(7), "^$");
  }
}

TEST(Interrupts, StayIgnoredWhereTheyAre) {
  const auto send = [] {
    std::signal(SIGHUP, SIG_IGN);
    end_at_interrupts();
    std::raise(SIGHUP);
    _exit(7);
  };
  EXPECT_EXIT(send(), testing::ExitedWithCode(7), "^$");
}

// Where they come just before it, as on a busy machine they may.
TEST(Interrupts, EndAWaitThatHasNotBegun) {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::function<void()> waits[] = {
      [] { (void)read_standard_input(); },
      [&] { (void)open_file(fifo, "fifo", O_RDONLY); },
      [&] { (void)open_file(fifo, "fifo", O_WRONLY); },
  };
  for (const auto& wait : waits) {
    const auto wait_interrupted = [&wait] {
      std::array<int, 2> silent{};
      if (pipe(silent.data()) != 0 || dup2(silent[0], STDIN_FILENO) < 0) _exit(1);
      std::signal(SIGINT, SIG_DFL);
      catch_interrupts();
      std::raise(SIGINT);
      alarm(20);  // else it would wait for ever
      try {
        wait();
      } catch (const Interrupted&) {
        _exit(7);
      }
      _exit(0);
    };
    EXPECT_EXIT(wait_interrupted(), testing::ExitedWithCode(7), "^$");
  }
}

}  // namespace
}  // namespace faststream
