// Signals that a test sends to itself.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>

#include "program/interrupt.h"

namespace faststream {

/// Signals are caught as by a program, whatever the test inherited; afterwards all is as before.
class CaughtInterrupts {
 public:
  CaughtInterrupts() {
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &plain, &before_[i]);
    catch_interrupts();
  }
  CaughtInterrupts(const CaughtInterrupts&) = delete;
  CaughtInterrupts& operator=(const CaughtInterrupts&) = delete;
  ~CaughtInterrupts() {
    clear_interrupt();
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace faststream
