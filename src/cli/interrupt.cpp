#include "cli/interrupt.h"

#include <csignal>

namespace faststream {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupt_flag = 1; };
  // No SA_RESTART: a read from the terminal returns. SA_RESETHAND: the second signal is deadly.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_flag != 0; }

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

}  // namespace faststream
