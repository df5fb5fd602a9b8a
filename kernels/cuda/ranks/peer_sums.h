// Sums over ranks whose GPUs reach each other's memory.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/rank_link.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"

namespace faststream {

inline constexpr int kMostPeers = 8;

/// A rank's memory of all ranks, as the kernels of one rank see it.
struct PeerMemory {
  std::array<std::byte*, kMostPeers> of_rank{};
  int rank = 0;
  int count = 0;
};

/// See Backend::sum_over_ranks(). Each rank writes its terms into the memory of all others, which
/// they add up in the order of ranks, as kernels/cpu/sum_over_ranks.h has it: no rank's host waits
/// for another.
class PeerSums {
 public:
  /// All ranks make theirs together; null on all of them where not all GPUs reach each other's
  /// memory, or two ranks have the same GPU: kernels that wait for each other must run side by
  /// side. The current GPU is the rank's. Throws Error when a GPU fails.
  static std::unique_ptr<PeerSums> make(RankLink& link, DType type);
  PeerSums(const PeerSums&) = delete;
  PeerSums& operator=(const PeerSums&) = delete;
  ~PeerSums();

  /// Whether add_up() is for such matrices.
  [[nodiscard]] static bool takes(const Matrix& share, const Matrix& out);
  void add_up(const Queue& queue, const Matrix& share, OutputMode output, const Matrix& out);

 private:
  explicit PeerSums(DType type) : type_(type) {}

  DType type_;
  DeviceMemory own_;
  PeerMemory peers_;
  std::array<bool, kMostPeers> is_mapped_{};  // of another process
  uint32_t turn_ = 0;
};

}  // namespace faststream
