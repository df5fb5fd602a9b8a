// Between the model file, which knows where weights are, and a backend, which takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace faststream {

/// Writes the bytes from `offset` of a range to `out`. Any number of threads at once.
using MakeBytes = std::function<void(uint64_t offset, std::span<std::byte> out)>;

/// Bytes of a source that a backend is to have one after the other: rows of equal size, which may
/// be parts of the source's.
struct WeightSlice {
  uint64_t to = 0;         ///< of the first byte, in the backend's memory
  uint64_t from = 0;       ///< of the first byte, in the source
  uint64_t row_bytes = 0;  ///< at least 1
  uint64_t rows = 1;
  uint64_t pitch = 0;  ///< from a row to the next in the source; any of one row

  [[nodiscard]] uint64_t end() const { return to + rows * row_bytes; }
};

/// Where weights come from: bytes in memory (a mapped file, usually) and, if they are a file's, the
/// descriptor and the offset of the first byte, for backends that rather read than fault pages in.
/// Those that no file has are made for backends that copy them: `bytes` are then just as many, and
/// what `make` gives only where somebody has put it there, for backends that use them in place.
/// A backend takes all bytes as they are, or those of the slices.
struct WeightSource {
  std::span<const std::byte> bytes;
  int fd = -1;
  uint64_t offset = 0;
  MakeBytes make = nullptr;
  /// In the order of `to`, without overlaps, within the bytes; empty: all bytes.
  std::vector<WeightSlice> slices = {};

  /// Bytes in the backend's memory.
  [[nodiscard]] uint64_t size() const {
    return slices.empty() ? bytes.size() : slices.back().end();
  }
  /// Fills `out` with what the backend is to have from `place` on; between slices that is anything.
  /// Reads the file, where there is one. Throws Error when that fails or ends early.
  void read(uint64_t place, std::span<std::byte> out) const;
};

}  // namespace faststream
