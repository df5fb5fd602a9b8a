// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace faststream {

/// Owns a read-only mapping of a whole file and the descriptor it came from. Moving keeps bytes()
/// valid.
class MappedFile {
 public:
  /// Throws Error, naming the file, when it does not exist, cannot be read, is empty, or is a
  /// folder or a device.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

/// Opens a regular file for reading; the caller closes the descriptor. Throws Error as MappedFile
/// does, except for an empty file.
int open_for_reading(const std::filesystem::path& path);

}  // namespace faststream
