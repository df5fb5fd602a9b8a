#include "support/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "support/error.h"

namespace faststream {

int open_for_reading(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO without a writer must become an error, not a wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw Error(path.string() + ": there is no such file; check the path");
    }
    throw Error(path.string() + ": cannot be opened: " + std::generic_category().message(errno));
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    const bool folder = S_ISDIR(status.st_mode);
    ::close(fd);
    throw Error(path.string() + (folder ? ": is a folder, where a file is needed"
                                        : ": is not a regular file and cannot be read here"));
  }
  return fd;
}

MappedFile::MappedFile(const std::filesystem::path& path) : fd_(open_for_reading(path)) {
  struct stat status {};
  void* mapping = MAP_FAILED;
  if (::fstat(fd_, &status) == 0 && status.st_size > 0) {
    size_ = static_cast<size_t>(status.st_size);
    mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
  }
  if (mapping == MAP_FAILED) {
    const int reason = errno;
    ::close(fd_);
    if (size_ == 0) throw Error(path.string() + ": is empty; write or copy the file again");
    throw Error(path.string() +
                ": cannot be mapped into memory: " + std::generic_category().message(reason));
  }
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace faststream
