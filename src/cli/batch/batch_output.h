// Where a batch's results go.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace faststream::cli {

/// A file, or standard output, that whole lines, or other bytes, are appended to.
class BatchOutput {
 public:
  /// Opens `path` for reading and appending, or makes it; an empty path is standard output. Throws
  /// Error when that fails, when another run writes to it, or, unless `resume`, when there is
  /// something in it, which `advice` says what to do about; with `resume`, when it is no regular
  /// file.
  BatchOutput(const std::string& path, bool resume,
              std::string_view advice = "continue it with --resume, or give another file");
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;
  ~BatchOutput();

  /// For messages.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int fd() const { return fd_; }
  /// Whether it was opened by a path.
  [[nodiscard]] bool is_file() const { return fd_ != STDOUT_FILENO; }

  /// What keep_note() kept with the file itself, beside its contents; empty where there is none, or
  /// the file system keeps none.
  [[nodiscard]] std::string note() const;
  /// Keeps a text of a few kilobytes with the file, where its system can.
  void keep_note(const std::string& note) const;

  /// Throws Error when it is the file that `input_fd` reads, under whatever name.
  void check_is_not(int input_fd, const std::string& input_name) const;
  /// Cuts off what is after the first `bytes` bytes. Throws Error.
  void truncate(uint64_t bytes);
  /// Appends the line and a newline, in one write where the system takes it whole. Throws Error.
  void write_line(std::string line);
  /// Appends the bytes. Throws Error.
  void write(std::string_view bytes);

 private:
  std::string name_;
  int fd_;
};

}  // namespace faststream::cli
