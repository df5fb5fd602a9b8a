#include "support/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "support/error.h"
#include "support/follow_links.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

// Whether the open file is still the one of that name: its last holder may have removed it.
bool is_named(int fd, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::optional<FileLock> FileLock::take(const fs::path& path) {
  fs::path lock_path = follow_links(path);
  lock_path += ".lock";
  const auto fail = [&](const char* action, int reason) {
    throw Error(path.string() + ": the lock file " + lock_path.string() + " cannot be " + action +
                ": " + std::strerror(reason));
  };
  for (;;) {
    const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
      fail("created", errno);
    }
    const int reason = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (reason == 0 && is_named(fd, lock_path)) return FileLock(std::move(lock_path), fd);
    ::close(fd);
    if (reason == EWOULDBLOCK) return std::nullopt;
    if (reason != 0 && reason != EINTR) {
      fail("locked", reason);
    }
  }
}

FileLock::FileLock(FileLock&& other) noexcept
    : lock_path_(std::move(other.lock_path_)), fd_(std::exchange(other.fd_, -1)) {}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(lock_path_.c_str());  // before it is given up, so that nobody else's is removed
  ::close(fd_);
}

}  // namespace faststream
