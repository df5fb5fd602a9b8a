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

// An empty regular file, as a lock is; anything else is somebody's own file.
bool can_be_lock(int fd) {
  struct stat opened = {};
  return ::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_size == 0;
}

}  // namespace

bool has_name(int fd, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::optional<FileLock> FileLock::take(const fs::path& path) {
  constexpr const char* kSuffix = ".lock";
  fs::path lock_path = follow_links(path);
  if (lock_path.extension() == kSuffix) {
    throw Error(path.string() + ": names that end in " + kSuffix +
                " are for the locks of other files; name another file");
  }
  lock_path += kSuffix;
  const auto fail = [&](const char* action, int reason) {
    throw Error(path.string() + ": the lock file " + lock_path.string() + " cannot be " + action +
                ": " + std::strerror(reason));
  };
  for (;;) {
    const int fd =
        ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
      fail("created", errno);
    }
    if (!can_be_lock(fd)) {
      ::close(fd);
      throw Error(path.string() + ": " + lock_path.string() +
                  " is needed as its lock file, but is a file of another kind; rename that, or "
                  "name another file");
    }
    const int reason = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (reason == 0 && has_name(fd, lock_path)) return FileLock(std::move(lock_path), fd);
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
  // Before it is given up, so that nobody else's is removed.
  if (can_be_lock(fd_) && has_name(fd_, lock_path_)) ::unlink(lock_path_.c_str());
  ::close(fd_);
}

}  // namespace faststream
