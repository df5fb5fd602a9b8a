// Between the model file, which knows where weights are, and a backend, which takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace faststream {

/// Where weights come from: bytes in memory (a mapped file, usually) and, if they are a file's, the
/// descriptor and the offset of the first byte, for backends that rather read than fault pages in.
struct WeightSource {
  std::span<const std::byte> bytes;
  int fd = -1;
  uint64_t offset = 0;
};

}  // namespace faststream
