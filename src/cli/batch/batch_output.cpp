#include "cli/batch/batch_output.h"

#include <linux/limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "program/open_file.h"
#include "support/error.h"
#include "support/io.h"

namespace faststream::cli {
namespace {

constexpr const char* kNoteName = "user.faststream.batch";

// False: another run has the lock, and not one that was killed just now, whose memory takes a while
// to be given back. Not every file system has locks.
bool lock(int fd) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// Throws Error if results must not be added to the open file.
void check_target(int fd, const std::string& name, bool resume, std::string_view advice) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) throw Error(name + " cannot be read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    if (resume) throw Error(name + " is no regular file, so a run into it cannot be resumed");
    return;
  }
  if (!lock(fd)) {
    throw Error(name + " is being written by another run; wait for it or give another file");
  }
  if (!resume && status.st_size > 0) {
    throw Error(name + " exists already; " + std::string(advice));
  }
}

}  // namespace

BatchOutput::BatchOutput(const std::string& path, bool resume, std::string_view advice)
    : name_(path.empty() ? "standard output" : path), fd_(STDOUT_FILENO) {
  if (path.empty()) return;
  // A device or a pipe may refuse to be read, and only --resume reads.
  fd_ = open_file(path, name_, (resume ? O_RDWR : O_WRONLY) | O_CREAT | O_APPEND, 0666);
  try {
    check_target(fd_, name_, resume, advice);
  } catch (...) {
    close(fd_);
    throw;
  }
}

BatchOutput::~BatchOutput() {
  if (fd_ != STDOUT_FILENO) close(fd_);
}

// In an extended attribute: who reads the file sees nothing of it, and it goes when the file does.
std::string BatchOutput::note() const {
  std::string note(XATTR_SIZE_MAX, '\0');
  const ssize_t n = fgetxattr(fd_, kNoteName, note.data(), note.size());
  note.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return note;
}

void BatchOutput::keep_note(const std::string& note) const {
  if (!is_file()) return;
  (void)fsetxattr(fd_, kNoteName, note.data(), note.size(), 0);  // not every file system has them
}

void BatchOutput::check_is_not(int input_fd, const std::string& input_name) const {
  struct stat input = {};
  struct stat output = {};
  if (fstat(input_fd, &input) != 0 || fstat(fd_, &output) != 0) return;
  const bool same = input.st_dev == output.st_dev && input.st_ino == output.st_ino;
  // A terminal, or /dev/null, can be both.
  if (!same || !S_ISREG(input.st_mode)) return;
  throw Error(name_ + " is the same file as the input, " + input_name + "; give another output");
}

void BatchOutput::truncate(uint64_t bytes) {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    throw Error(name_ + " cannot be written: " + std::strerror(errno));
  }
}

void BatchOutput::write_line(std::string line) {
  line += '\n';
  write(line);
}

void BatchOutput::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write_waiting(fd_, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(name_ + " cannot be written: " + std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace faststream::cli
