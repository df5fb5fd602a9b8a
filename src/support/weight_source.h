// Between the model file, which knows where weights are, and a backend, which takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace faststream {

/// Writes the bytes from `offset` of a range to `out`. Any number of threads at once.
using MakeBytes = std::function<void(uint64_t offset, std::span<std::byte> out)>;

/// Where weights come from: bytes in memory (a mapped file, usually) and, if they are a file's, the
/// descriptor and the offset of the first byte, for backends that rather read than fault pages in.
/// Those that no file has are made for backends that copy them: `bytes` are then just as many, and
/// what `make` gives only where somebody has put it there, for backends that use them in place.
struct WeightSource {
  std::span<const std::byte> bytes;
  int fd = -1;
  uint64_t offset = 0;
  MakeBytes make = nullptr;
};

}  // namespace faststream
