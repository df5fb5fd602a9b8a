#include "program/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

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

}  // namespace
}  // namespace faststream
