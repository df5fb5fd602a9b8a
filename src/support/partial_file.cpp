#include "support/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "support/error.h"
#include "support/file_lock.h"
#include "support/follow_links.h"

namespace faststream {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPartial = ".partial-";

// As much of a name as leaves room for what stands behind it.
std::string with_suffix(const std::string& name, const std::string& suffix) {
  return name.substr(0, NAME_MAX - suffix.size()) + suffix;
}

// Whether a file is one that is made for `target`.
bool is_partial_of(const std::string& name, const std::string& target) {
  const size_t at = name.rfind(kPartial);
  if (at == std::string::npos) return false;
  const std::string_view number = std::string_view(name).substr(at + kPartial.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !number.empty() && std::ranges::all_of(number, is_digit) &&
         name == with_suffix(target, name.substr(at));
}

}  // namespace

PartialFile::PartialFile(fs::path path, uint64_t bytes, bool overwrite)
    : OutputFile(std::move(path)), target_(follow_links(name())), overwrite_(overwrite) {
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) {
    throw Error(name().string() + ": is a folder; name the file to write");
  }
  if (exists && !overwrite_) fail_exists();
  if (exists && !S_ISREG(old.st_mode)) {
    throw Error(name().string() + ": is not a regular file and cannot be replaced");
  }
  remove_dead();
  create(exists ? S_IRUSR | S_IWUSR : 0666);
  try {
    if (exists) take_owner_and_mode(old);
    reserve(bytes);
  } catch (...) {  // no destructor will run
    remove();
    throw;
  }
}

// Whoever holds the lock of what has a name may remove it, and nobody else does. Where a file
// cannot be locked nothing is removed.
void PartialFile::remove_dead() const {
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const std::string name = target_.filename().string();
  std::error_code unreadable;  // whoever creates a file there says what is wrong
  fs::directory_iterator entries(folder, unreadable);
  for (; !unreadable && entries != fs::directory_iterator(); entries.increment(unreadable)) {
    const fs::path& path = entries->path();
    std::error_code gone;
    if (!is_partial_of(path.filename().string(), name) || !entries->is_regular_file(gone)) continue;
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd, path)) ::unlink(path.c_str());
    ::close(fd);
  }
}

// Under a name that nobody has: processes in containers have the same numbers. Before its lock is
// taken another process may take it for a dead one's, and remove it.
void PartialFile::create(mode_t mode) {
  for (int64_t number = ::getpid(); fd_ < 0; ++number) {
    partial_ = target_;
    partial_.replace_filename(
        with_suffix(target_.filename().string(), std::string(kPartial) + std::to_string(number)));
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd_ < 0 && errno != EEXIST) fail("create the file", errno);
    if (fd_ < 0) continue;
    const bool is_taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (is_taken || !has_name(fd_, partial_)) ::close(std::exchange(fd_, -1));
  }
}

PartialFile::~PartialFile() { remove(); }

// The name first, while its lock is held.
void PartialFile::remove() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void PartialFile::commit() {
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) fail("sync", errno);
  }
  const int written = std::exchange(fd_, ::dup(fd_));  // which holds the lock until it is renamed
  if (::close(written) != 0) fail("close", errno);
  rename_into_place();
  partial_.clear();
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  sync_folder();
}

void PartialFile::fail_exists() const {
  throw Error(name().string() +
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
