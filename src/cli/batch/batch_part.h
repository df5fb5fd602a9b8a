// One of several parts of a file of lines, each for a process of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace faststream::cli {

struct BatchPart {
  uint64_t number = 1;  ///< from 1 to count
  uint64_t count = 1;   ///< parts of about as many bytes, one after the other

  /// Of a file of `size` bytes: where this part's lines begin, from the first byte on, and before
  /// which one.
  [[nodiscard]] uint64_t begin(uint64_t size) const { return border(number - 1, size); }
  [[nodiscard]] uint64_t end(uint64_t size) const { return border(number, size); }

 private:
  // Without a product that is too large.
  [[nodiscard]] uint64_t border(uint64_t n, uint64_t size) const {
    return size / count * n + size % count * n / count;
  }
};

/// "2/5": the second of five; nothing where `text` is no part.
std::optional<BatchPart> batch_part_of(std::string_view text);

}  // namespace faststream::cli
