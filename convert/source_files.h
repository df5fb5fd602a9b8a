// The files of a checkpoint: all that a conversion reads goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace faststream::convert {

/// A file open for reading at any place, from any number of threads.
class InputFile {
 public:
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  /// Fills `out` with the bytes at `offset`. Throws Error when the file ends before or the disk
  /// fails.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// Throws Error when it was written to after it was opened.
  void refuse_changed() const;

 private:
  friend class SourceFiles;
  explicit InputFile(const std::filesystem::path& path);

  std::filesystem::path path_;
  uint64_t size_ = 0;
  std::timespec modified_{};
  int fd_ = -1;
};

/// Opens files and remembers them, so that none of them is taken for the output.
class SourceFiles {
 public:
  /// Throws Error, naming the file, when it does not exist, cannot be read, is no regular file or
  /// only a pointer of Git LFS.
  InputFile open(const std::filesystem::path& path);
  /// All of a small file. Throws Error also when it has more than `max_bytes` bytes.
  std::string read(const std::filesystem::path& path, uint64_t max_bytes);
  /// The JSON object in a file, as Python's json has it; an empty one where the file does not
  /// exist. Throws Error, naming the file, when it cannot be read, is larger than 64 MB or holds
  /// something else.
  nlohmann::json read_json(const std::filesystem::path& path);

  /// Throws Error when `output` is one of the files opened so far: under the same name, another
  /// spelling of it, or through links of either kind.
  void refuse_as_output(const std::filesystem::path& output) const;

 private:
  std::vector<std::filesystem::path> opened_;
};

}  // namespace faststream::convert
