// int4 weights (support/weight_format.h) as the tensor cores' registers take them: bytes.
#pragma once

#include <cstdint>

#include "support/weight_format.h"

namespace faststream {

/// For each byte that describes a group what makes its levels, in shared memory: a step, and 128
/// less the offset four times. Levels and 128 are 1 to 255, so that four are made at once.
struct DeviceInt4Table {
  uint2 entries[256];

  /// By any threads, for each byte.
  __device__ void fill(uint32_t code) {
    constexpr uint32_t kFourTimes = 0x01010101;
    const Int4Levels levels(static_cast<std::byte>(code));
    entries[code] = make_uint2(static_cast<uint32_t>(levels.step),
                               static_cast<uint32_t>(128 - levels.offset) * kFourTimes);
  }
};

/// Eight elements of a group, four in low halves of bytes and four in high ones, as signed bytes.
__device__ inline void widen_int4(uint32_t q, const uint2& levels, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kLow = 0x0f0f0f0f;
  constexpr uint32_t kSigns = 0x80808080;
  low = ((q & kLow) * levels.x + levels.y) ^ kSigns;
  high = ((q >> 4 & kLow) * levels.x + levels.y) ^ kSigns;
}

}  // namespace faststream
