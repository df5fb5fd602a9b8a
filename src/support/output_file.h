// Files in the making, which are written at any place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace faststream {

/// What is written is there for others, if at all, once it is committed.
class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  virtual ~OutputFile();

  /// As messages name it.
  [[nodiscard]] const std::filesystem::path& name() const { return name_; }
  /// Takes room for `bytes` on the disk. Throws Error, naming the file, when there is not enough.
  void reserve(uint64_t bytes);
  /// Throws Error when the disk fails.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// All is written. Throws Error when the disk fails.
  virtual void commit() = 0;

 protected:
  explicit OutputFile(std::filesystem::path name) : name_(std::move(name)) {}
  [[noreturn]] void fail(const std::string& action, int reason) const;

  int fd_ = -1;

 private:
  std::filesystem::path name_;
  uint64_t bytes_ = 0;
};

}  // namespace faststream
