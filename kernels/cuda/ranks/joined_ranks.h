// What a GPU has of the ranks that it has joined.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/sum_over_ranks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/ranks/nccl_sums.h"
#include "kernels/cuda/ranks/peer_sums.h"

namespace faststream {

/// Sums are the GPUs' own where these reach each other's memory; else NCCL's if there is one, or
/// where that is asked for; else their hosts'.
struct CudaBackend::Ranks {
  /// Floats that ranks add up at a time beside a layer's rows; a multiple of kEachOfRow.
  static constexpr int64_t kMostFloats = int64_t{256} << 10;
  /// Rows of them have a multiple of so many: what a thread adds up.
  static constexpr int64_t kEachOfRow = 8;

  Ranks(RankLink& link, DType sums);

  /// ", sums by NCCL 2.27.3", or nothing of the usual.
  [[nodiscard]] std::string description() const;

  /// How many rows of so many floats, with what makes them such a multiple, are added up at a time.
  static int64_t rows_at_once(int64_t cols) { return kMostFloats / padded(cols); }
  /// Memory for as many.
  [[nodiscard]] Matrix float_rows(int64_t rows, int64_t cols) const {
    return {floats.get(), DType::f32, rows, padded(cols)};
  }

  DType type;                       // of a layer's sums
  std::unique_ptr<PeerSums> peers;  // null: there are none
  std::unique_ptr<NcclSums> nccl;   // null: there are peers, or there is none
  RankSums hosts;
  RankSums hosts_of_floats;
  std::vector<float> memory;  // for these
  DeviceMemory floats;

 private:
  static int64_t padded(int64_t cols) { return (cols + kEachOfRow - 1) / kEachOfRow * kEachOfRow; }
};

}  // namespace faststream
