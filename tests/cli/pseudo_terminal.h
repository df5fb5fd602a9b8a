// One of the built programs on a terminal, with the test as its user.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run_program.h"

namespace faststream {

/// A child process whose standard input, output and error are a pseudo-terminal of 24 lines and 100
/// columns, an xterm. Destroyed, it takes the child with it.
class PseudoTerminal {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  /// Runs `args[0]`, a program in programs_folder(), with `environment` set besides.
  explicit PseudoTerminal(const std::vector<std::string>& args,
                          const Environment& environment = {}) {
    const std::string program = programs_folder() + "/" + args.at(0);
    std::vector<char*> argv;
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ < 0) throw std::runtime_error("no pseudo-terminal");
    if (pid_ == 0) {
      std::signal(SIGINT, SIG_DFL);  // whatever the test inherited
      setenv("TERM", "xterm", 1);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }

  /// Types: "\r" is the return key, "\x03" Ctrl-C, "\x04" Ctrl-D, "\x1b[A" the arrow up.
  void send(std::string_view keys) const {
    while (!keys.empty()) {
      const ssize_t n = write(fd_, keys.data(), keys.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw std::runtime_error("the pseudo-terminal takes no input");
      keys.remove_prefix(static_cast<size_t>(n));
    }
  }

  /// Waits until `text` is on the terminal after all that was expected before.
  testing::AssertionResult expect(std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const size_t at = output_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return testing::AssertionSuccess();
      }
      if (!read_more(deadline)) {
        return testing::AssertionFailure()
               << "\"" << text << "\" did not come after \"" << output_.substr(seen_)
               << "\"; all output is \"" << output_ << "\"";
      }
    }
  }

  /// Waits for a prompt, and until the program reads keys, not lines (it prompts a moment before).
  testing::AssertionResult expect_prompt(std::string_view prompt = "> ") {
    testing::AssertionResult prompted = expect(prompt);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (prompted && reads_lines()) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return testing::AssertionFailure() << "the terminal stays in canonical mode";
      }
      usleep(1000);
    }
    return prompted;
  }

  void resize(unsigned short rows, unsigned short columns) const {
    winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (ioctl(fd_, TIOCSWINSZ, &size) != 0) throw std::runtime_error("cannot resize");
  }
  /// Another size, upon which the program asks where the cursor is: `answer` is sent, and `drawn`
  /// comes.
  testing::AssertionResult expect_size_change(unsigned short rows, unsigned short columns,
                                              std::string_view answer, const std::string& drawn) {
    resize(rows, columns);
    if (const testing::AssertionResult asked = expect("\x1b[6n"); !asked) return asked;
    send(answer);
    return expect(drawn);
  }
  void signal(int number) const { kill(pid_, number); }

  /// Waits for the end; the exit code, 128 + the signal's number, or -1 after too long a time.
  int wait() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (read_more(deadline)) {
    }
    if (std::chrono::steady_clock::now() >= deadline) return -1;
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  /// Everything that came so far.
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  static constexpr std::chrono::seconds kPatience{60};  // for a slow machine with much else to do

  [[nodiscard]] bool reads_lines() const {
    termios modes = {};
    if (tcgetattr(fd_, &modes) != 0) throw std::runtime_error("no modes of the pseudo-terminal");
    return (modes.c_lflag & ICANON) != 0;
  }

  // False at the end of the output, or at the deadline.
  bool read_more(std::chrono::steady_clock::time_point deadline) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
      if (ready < 0 && errno != EINTR) return false;
      if (ready > 0) break;
    }
    char block[4096];
    const ssize_t n = read(fd_, block, sizeof block);
    if (n <= 0) return false;  // EIO: the child has gone
    output_.append(block, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  pid_t pid_ = 0;
  std::string output_;
  size_t seen_ = 0;  // of output_, by expect()
};

}  // namespace faststream
