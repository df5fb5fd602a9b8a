// Starts one of the built programs and collects what it says.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct ProgramResult {
  int exit_code = 0;  ///< 128 + the signal's number when a signal ended it
  std::string out;
  std::string err;
};

namespace run_program_detail {

// Files rather than pipes: neither side can wait for the other, whatever the sizes.
using TemporaryFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

inline TemporaryFile temporary_file() {
  TemporaryFile file(std::tmpfile(), &std::fclose);
  if (!file) throw std::runtime_error("cannot make a temporary file");
  return file;
}

inline std::string contents(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char block[4096];
  size_t count = 0;
  while ((count = std::fread(block, 1, sizeof block, file)) > 0) text.append(block, count);
  return text;
}

}  // namespace run_program_detail

/// The folder of the built programs, which the environment variable FASTSTREAM_BIN names.
inline std::string programs_folder() {
  const char* folder = std::getenv("FASTSTREAM_BIN");
  if (folder == nullptr) throw std::runtime_error("FASTSTREAM_BIN is not set");
  return folder;
}

/// In place of a descriptor: none, as after "<&-" in a shell.
constexpr int kClosed = -1;

/// Starts `args[0]`, a program in programs_folder() or a path from the root, with the other
/// arguments and these descriptors as standard input, output and error; signals do what they do by
/// default, whatever the test inherited. Throws std::runtime_error when it cannot be started.
inline pid_t start_program(std::vector<std::string> args, int in, int out, int err) {
  const bool is_path = args.at(0).starts_with('/');
  const std::string program = is_path ? args.at(0) : programs_folder() + "/" + args.at(0);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int descriptors[] = {in, out, err};
  for (int target = STDIN_FILENO; target <= STDERR_FILENO; ++target) {
    const int fd = descriptors[target];
    if (fd == kClosed) {
      posix_spawn_file_actions_addclose(&actions, target);
    } else {
      posix_spawn_file_actions_adddup2(&actions, fd, target);
    }
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int failure =
      ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::runtime_error("cannot start " + program);
  return pid;
}

/// Waits for the end of a started program and returns ProgramResult::exit_code.
inline int wait_for_program(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) throw std::runtime_error("lost a program");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Runs `args[0]`, a program in programs_folder(), with the other arguments, and waits for its end.
/// Throws std::runtime_error when it cannot be started.
inline ProgramResult run_program(const std::vector<std::string>& args,
                                 const std::string& stdin_text = "") {
  using namespace run_program_detail;
  const TemporaryFile in = temporary_file();
  const TemporaryFile out = temporary_file();
  const TemporaryFile err = temporary_file();
  std::fwrite(stdin_text.data(), 1, stdin_text.size(), in.get());
  std::fflush(in.get());
  ::lseek(::fileno(in.get()), 0, SEEK_SET);

  ProgramResult result;
  result.exit_code = wait_for_program(
      start_program(args, ::fileno(in.get()), ::fileno(out.get()), ::fileno(err.get())));
  result.out = contents(out.get());
  result.err = contents(err.get());
  return result;
}

/// Converts a checkpoint without a tokenizer of its own, by its path in tests/golden/.
inline void convert_golden(const std::string& checkpoint, const std::string& output) {
  const std::string golden = std::string(std::getenv("FASTSTREAM_TEST_DATA")) + "/golden/";
  const ProgramResult result =
      run_program({"faststream-convert", golden + checkpoint, "--tokenizer",
                   golden + "gqa/tokenizer.model", "-o", output, "--force", "--quiet"});
  if (result.exit_code != 0) throw std::runtime_error(result.err);
}

/// An open file.
class Descriptor {
 public:
  /// As open(2). Throws std::runtime_error when that fails.
  Descriptor(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (fd_ < 0) throw std::runtime_error("cannot open " + path);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }

  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};
