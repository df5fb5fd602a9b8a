#include "program/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "program/program.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr std::array kInterrupts = {SIGINT, SIGTERM, SIGHUP};

// Atomic, as a handler runs on any thread.
std::atomic<bool> interrupt_flag = false;
std::atomic<bool> terminate_flag = false;
std::atomic<int> event = -1;  // counts signals; what a handler writes to
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "signal handlers use them");

void handle(int signal) {
  const int saved = errno;
  (signal == SIGINT ? interrupt_flag : terminate_flag) = true;
  if (event >= 0) eventfd_write(event, 1);
  errno = saved;
}

void end(int /*signal*/) { _exit(kExitInterrupted); }

// Leaves a signal ignored that is, as nohup has SIGHUP and a shell SIGINT of a job in the
// background.
void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction before = {};
  sigaction(signal, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;  // no SA_RESTART: a read from the terminal returns
  sigaction(signal, &action, nullptr);
}

}  // namespace

void end_at_interrupts() {
  for (const int signal : kInterrupts) set_handler(signal, &end, 0);
}

void catch_interrupts() {
  for (const int signal : kInterrupts) {
    // A second signal is deadly, but for SIGHUP: a shell whose terminal goes passes it on, and when
    // the shell ends the kernel sends it once more.
    set_handler(signal, &handle, signal == SIGHUP ? 0 : static_cast<int>(SA_RESETHAND));
  }
}

void survive_interrupts() {
  if (event < 0) {
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0) throw Error(std::string("no event descriptor: ") + std::strerror(errno));
  }
  set_handler(SIGINT, &handle, 0);
}

void clear_interrupt() {
  interrupt_flag = false;
  eventfd_t count = 0;
  if (!terminate_flag && event >= 0) eventfd_read(event, &count);
}

bool interrupted() { return interrupt_flag || terminate_flag; }

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

bool wait_for_input(int fd) {
  constexpr int kLookMilliseconds = 100;
  for (;;) {
    check_interrupted();
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int n_ready = poll(&ready, 1, kLookMilliseconds);
    if (n_ready > 0) return true;
    if (n_ready < 0 && errno != EINTR) return false;
  }
}

int interrupt_descriptor() { return event; }

}  // namespace faststream
