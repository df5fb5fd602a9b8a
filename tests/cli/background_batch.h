// A batch that is ended before it is done.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch_program.h"

namespace faststream {

/// A batch from a file to a file that runs in the background.
class BackgroundBatch {
 public:
  explicit BackgroundBatch(const std::vector<std::string>& command,
                           int standard_input = STDIN_FILENO)
      : null_(open("/dev/null", O_WRONLY | O_CLOEXEC)),
        errors_(scratch_folder() / "background-errors.txt"),
        pid_(start_program(command, standard_input, null_,
                           Descriptor(errors_, O_WRONLY | O_CREAT | O_TRUNC).fd())) {}
  BackgroundBatch(const BackgroundBatch&) = delete;
  BackgroundBatch& operator=(const BackgroundBatch&) = delete;
  ~BackgroundBatch() {
    if (pid_ != 0) end(SIGKILL);
    close(null_);
  }

  // Waits until `output` has at least so many bytes, or the program has ended.
  void wait_for_bytes(const std::string& output, uintmax_t bytes) const {
    std::error_code ignored;
    while (fs::exists(output) ? fs::file_size(output, ignored) < bytes : true) {
      siginfo_t info = {};
      if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid != 0) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // What standard error has so far.
  [[nodiscard]] std::string errors() const { return read_file(errors_); }
  // Sends a signal and returns the exit code.
  int end(int signal) {
    kill(pid_, signal);
    return wait();
  }
  // Returns the exit code, once it has ended by itself.
  int wait() { return wait_for_program(std::exchange(pid_, 0)); }

 private:
  int null_;
  std::string errors_;
  pid_t pid_;
};

}  // namespace faststream
