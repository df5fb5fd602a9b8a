// Memory of ranks whose GPUs reach each other's.
#pragma once

#include <cuda_runtime.h>

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

/// A sum whose terms go word by word, if there is one.
struct Terms {
  PeerMemory places;       ///< of the terms of all ranks, one after the other in their order
  int32_t rank_bytes = 0;  ///< of a rank's
  DType dtype = DType::bf16;

  [[nodiscard]] __host__ __device__ bool exist() const { return places.count > 0; }
};

}  // namespace faststream
