// Lines of any number of a file or a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faststream::cli {

class LineReader {
 public:
  /// Reads from descriptor `fd`, which must stay open, from where it is. `name` is for messages. Of
  /// lines longer than `max_bytes`, or than there is memory for, only the start is kept.
  LineReader(int fd, std::string name, size_t max_bytes);

  struct Line {
    uint64_t number = 0;         ///< from 1
    uint64_t begin = 0;          ///< bytes read before it
    std::string_view text = {};  ///< without its newline; valid until the next call
    bool too_long = false;       ///< text is only the start
    bool ended = false;          ///< by a newline; the last line may have none
  };
  /// The next line, or nothing at the end. Throws Interrupted after Ctrl-C, Error when nothing can
  /// be read or a line has more than 16 GB.
  std::optional<Line> next();

  /// Whether next() has something to read at once, if only the start of a line, or the end.
  [[nodiscard]] bool has_more_now() const;

  /// Bytes read so far, up to the end of the last line that next() gave.
  [[nodiscard]] uint64_t position() const { return position_; }

 private:
  bool fill();
  bool keep(std::string_view piece);

  int fd_;
  std::string name_;
  size_t max_bytes_;
  std::vector<char> block_;
  std::string_view unread_;  // of block_
  std::string line_;
  uint64_t number_ = 0;
  uint64_t position_ = 0;
};

}  // namespace faststream::cli
