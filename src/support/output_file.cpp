#include "support/output_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "support/error.h"
#include "support/progress.h"

namespace faststream {

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

// Takes the space now: running out of it after an hour of conversion would be a waste.
void OutputFile::reserve(uint64_t bytes) {
  bytes_ = bytes;
  const auto size = static_cast<off_t>(bytes);
  if (size == 0) return;
  int outcome = 0;
  do {
    outcome = ::fallocate(fd_, 0, 0, size);
  } while (outcome != 0 && errno == EINTR);
  if (outcome == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("reserve space", errno);
  if (::ftruncate(fd_, size) != 0) fail("set the size", errno);
  struct statvfs disk {};
  if (::fstatvfs(fd_, &disk) != 0) return;
  if (uint64_t{disk.f_bavail} * disk.f_frsize < bytes) fail("reserve space", ENOSPC);
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void OutputFile::fail(const std::string& action, int reason) const {
  if (reason == EFBIG) {
    throw Error(name_.string() + ": the file needs " + format_bytes(bytes_) +
                ", more than this disk or the limit on files (ulimit -f) allows");
  }
  if (reason == ENOSPC || reason == EDQUOT) {
    throw Error(name_.string() + ": the disk is full: the file needs " + format_bytes(bytes_) +
                "; free some space or choose another disk");
  }
  throw Error(name_.string() + ": cannot " + action + ": " +
              std::generic_category().message(reason));
}

}  // namespace faststream
