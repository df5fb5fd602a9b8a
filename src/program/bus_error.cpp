#include "program/bus_error.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "program/program.h"

namespace faststream {
namespace {

std::string sentence;
std::atomic_flag reported = ATOMIC_FLAG_INIT;

// Runs on the thread that reads; several may at once.
void handle(int signal, siginfo_t* info, void* /*context*/) {
  if (info->si_code != BUS_ADRERR && info->si_code != BUS_MCEERR_AR) {
    std::signal(signal, SIG_DFL);
    if (info->si_code <= 0) std::raise(signal);  // somebody sent it
    return;                                      // else the faulty instruction runs again
  }
  while (reported.test_and_set()) pause();
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, sentence.data(), sentence.size());
  _exit(kExitFailed);
}

}  // namespace

void report_bus_errors(const std::string& program) {
  sentence = program +
             ": the model file, or another one in use, was truncated or cannot be read any more; "
             "copy it again and leave it as it is while it is in use\n";
  struct sigaction action = {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace faststream
