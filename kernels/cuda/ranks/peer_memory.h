// Memory of ranks whose GPUs reach each other's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "support/dtype.h"

namespace faststream {

inline constexpr int kMostPeers = 8;

/// A rank's memory of all ranks, as the kernels of one rank see it.
struct PeerMemory {
  std::byte* of_rank[kMostPeers] = {};
  int rank = 0;
  int count = 0;
};

/// A sum of one row: where each rank's memory has the terms of all, a row of each rank in their
/// order.
struct Terms {
  int64_t at = -1;  ///< bytes; negative: there is no sum
  int32_t row_bytes = 0;
  DType dtype = DType::bf16;
};

}  // namespace faststream
