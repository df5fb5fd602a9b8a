#include "support/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "support/error.h"
#include "support/follow_links.h"
#include "support/progress.h"

namespace faststream {

namespace fs = std::filesystem;

PartialFile::PartialFile(fs::path path, uint64_t bytes, bool overwrite)
    : path_(std::move(path)), target_(follow_links(path_)), bytes_(bytes), overwrite_(overwrite) {
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) {
    throw Error(path_.string() + ": is a folder; name the file to write");
  }
  if (exists && !overwrite_) fail_exists();
  if (exists && !S_ISREG(old.st_mode)) {
    throw Error(path_.string() + ": is not a regular file and cannot be replaced");
  }
  create(exists ? S_IRUSR | S_IWUSR : 0666);
  try {
    if (exists) take_owner_and_mode(old);
    reserve();
  } catch (...) {  // no destructor will run
    ::close(fd_);
    ::unlink(partial_.c_str());
    throw;
  }
}

// Under a name that nobody has: processes in containers have the same numbers.
void PartialFile::create(mode_t mode) {
  for (int64_t number = ::getpid(); fd_ < 0; ++number) {
    const std::string suffix = ".partial-" + std::to_string(number);
    partial_ = target_;
    partial_.replace_filename(target_.filename().string().substr(0, NAME_MAX - suffix.size()) +
                              suffix);
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ < 0 && errno != EEXIST) fail("create the file", errno);
  }
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void PartialFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void PartialFile::commit() {
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) fail("sync", errno);
  }
  if (::close(std::exchange(fd_, -1)) != 0) fail("close", errno);
  rename_into_place();
  partial_.clear();
  sync_folder();
}

void PartialFile::fail(const std::string& action, int reason) const {
  if (reason == EFBIG) {
    throw Error(path_.string() + ": the file needs " + format_bytes(bytes_) +
                ", more than this disk or the limit on files (ulimit -f) allows");
  }
  if (reason == ENOSPC || reason == EDQUOT) {
    throw Error(path_.string() + ": the disk is full: the file needs " + format_bytes(bytes_) +
                "; free some space or choose another disk");
  }
  throw Error(path_.string() + ": cannot " + action + ": " +
              std::generic_category().message(reason));
}

void PartialFile::fail_exists() const {
  throw Error(path_.string() +
              ": already exists; choose another name or overwrite it with --force");
}

// Of the file that will be replaced. Only root can give files away; the group then loses its rights
// where it is another.
void PartialFile::take_owner_and_mode(const struct stat& old) const {
  const bool same_group = ::fchown(fd_, old.st_uid, old.st_gid) == 0 ||
                          ::fchown(fd_, static_cast<uid_t>(-1), old.st_gid) == 0;
  const mode_t kept = same_group ? S_IRWXU | S_IRWXG | S_IRWXO : S_IRWXU | S_IRWXO;
  if (::fchmod(fd_, old.st_mode & kept) != 0) fail("set the permissions", errno);
}

// Takes the space now: running out of it after an hour of conversion would be a waste.
void PartialFile::reserve() const {
  const auto size = static_cast<off_t>(bytes_);
  if (size == 0) return;
  int outcome = 0;
  do {
    outcome = ::fallocate(fd_, 0, 0, size);
  } while (outcome != 0 && errno == EINTR);
  if (outcome == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("reserve space", errno);
  if (::ftruncate(fd_, size) != 0) fail("set the size", errno);
  std::error_code failed;
  const fs::space_info space = fs::space(partial_, failed);
  if (!failed && space.available < bytes_) fail("reserve space", ENOSPC);
}

void PartialFile::rename_into_place() {
  int failed = 0;
  if (overwrite_) {
    failed = ::rename(partial_.c_str(), target_.c_str());
  } else {
    failed = ::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE);
    if (failed != 0 && errno == EEXIST) fail_exists();
    // Some network filesystems know no RENAME_NOREPLACE; the constructor has looked before.
    if (failed != 0 && errno == EINVAL) failed = ::rename(partial_.c_str(), target_.c_str());
  }
  if (failed != 0) fail("rename the finished file", errno);
}

// Makes the new name durable. Filesystems that cannot sync folders lose nothing but that.
void PartialFile::sync_folder() const {
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0) return;
  ::fsync(folder_fd);
  ::close(folder_fd);
}

void write_file(const fs::path& path, std::string_view text, bool overwrite) {
  PartialFile file(path, text.size(), overwrite);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace faststream
