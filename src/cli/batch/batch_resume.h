// Which lines a former run of a batch has answered already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace faststream::cli {

/// The records of a former run's output. 20 bytes a record: of ids and the like only a hash is
/// kept.
class DoneLines {
 public:
  /// None.
  DoneLines() = default;
  /// Reads the output from descriptor `fd`, from where it is; `name` is for messages. A last line
  /// without newline that begins as records do was cut off when the run was, and does not count.
  /// Throws Error, naming the line, when another is no record or answers the same line of the input
  /// as an earlier one; Interrupted after Ctrl-C.
  DoneLines(int fd, const std::string& name);

  [[nodiscard]] size_t size() const { return records_.size(); }
  /// Bytes of the output up to the end of its last whole line.
  [[nodiscard]] uint64_t whole_bytes() const { return whole_bytes_; }

  /// The last line of the input that has been answered; 0: none.
  [[nodiscard]] uint64_t last_line() const { return records_.empty() ? 0 : records_.back().line(); }
  /// Whether line `line` of the input has been answered.
  [[nodiscard]] bool contains(uint64_t line) const { return find(line) != records_.end(); }
  /// Throws Error unless the record of `line`, which is there, has, where it
  /// says them, this id, this line_hash() and this seed (nothing: any).
  void check_same(uint64_t line, const nlohmann::json& id, const std::string& line_hash,
                  std::optional<uint64_t> seed) const;
  /// Throws Error when there is a record of `line`, which is blank in the input.
  void check_blank(uint64_t line) const;
  /// Throws Error when there is a record of `line`, which is in another part of the input.
  void check_other_part(uint64_t line) const;
  /// Throws Error when there are records of lines after `last_line`, the input's last one.
  void check_end(uint64_t last_line) const;

 private:
  struct Record {  // of 32-bit words: 20 bytes without padding
    uint32_t line_high;
    uint32_t line_low;
    uint32_t id;  // a digest, as the next two, which are 0 where the record does not say
    uint32_t line_hash;
    uint32_t seed;
    [[nodiscard]] uint64_t line() const { return uint64_t{line_high} << 32 | line_low; }
  };
  [[nodiscard]] std::deque<Record>::const_iterator find(uint64_t line) const;

  std::string name_;
  std::deque<Record> records_;  // by line; a deque grows without a copy
  uint64_t whole_bytes_ = 0;
};

}  // namespace faststream::cli
