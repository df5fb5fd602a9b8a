// A file that one process has to itself.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace faststream {

/// Whether the open file is still the one of that name. Where whoever holds a file's lock may
/// remove it, the name that it was opened by may be gone, or another's, before the lock is taken.
bool has_name(int fd, const std::filesystem::path& path);

/// Holds a file against everybody else who asks with a FileLock, by the file of the same name with
/// ".lock" beside it: the file itself may be replaced or not be there yet. Symbolic links are
/// followed first, so all names of a file share a lock. The system takes the lock from a process
/// that dies; the destructor removes the lock file. Only an empty regular file is ever used as one
/// or removed.
class FileLock {
 public:
  /// Nothing when another process, or another FileLock, holds it. Throws Error, naming both files,
  /// when the lock file cannot be made or its name is taken by something else; also when `path`
  /// itself is named like a lock file; and as follow_links() does.
  static std::optional<FileLock> take(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::filesystem::path lock_path, int fd) : lock_path_(std::move(lock_path)), fd_(fd) {}

  std::filesystem::path lock_path_;
  int fd_;  // -1: moved from
};

}  // namespace faststream
