// llama.cpp's importance matrices, both forms: whatever the bytes, an Error or finite values.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "convert/calibration/imatrix.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

FUZZ_TARGET(imatrix) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    for (const auto& [name, entry] : faststream::convert::parse_imatrix(read, size, "fuzz")) {
      if (entry.counts.empty() || entry.mean_squares.size() % entry.counts.size() != 0) {
        std::abort();
      }
      for (const float value : entry.mean_squares) {
        if (!std::isfinite(value) || value < 0) std::abort();
      }
    }
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
