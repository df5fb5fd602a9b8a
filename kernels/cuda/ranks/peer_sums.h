// Sums over ranks whose GPUs reach each other's memory.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/rank_link.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/ranks/peer_memory.h"
#include "kernels/cuda/ranks/term_ring.h"
#include "kernels/cuda/step_kernel/rows.cuh"

namespace faststream {

/// Terms of small sums that the kernel before has used.
using UsedTerms = std::array<step_kernel::Pieces, 2>;

/// Where the terms of a share [rows, n] are to be, without gaps.
struct TermPlaces {
  void* own = nullptr;  ///< in this rank's memory
  void* far = nullptr;  ///< in the other's
  DType dtype = DType::bf16;
};

/// See Backend::sum_over_ranks(). Each rank writes its terms into the memory of all others, which
/// they add up in the order of ranks, as kernels/cpu/sum_over_ranks.h has it: no rank's host waits
/// for another. Terms of small sums go word by word, by kernels of their own or by the step's
/// kernel, whichever a rank has (ranks/terms.cuh).
class PeerSums {
 public:
  /// All ranks make theirs together; null on all of them where not all GPUs reach each other's
  /// memory, two ranks have the same GPU, or ranks are threads and kernels are loaded when they are
  /// first used (CUDA_MODULE_LOADING): kernels that wait for each other must run side by side. The
  /// current GPU is the rank's. Throws Error when a GPU fails.
  static std::unique_ptr<PeerSums> make(RankLink& link, DType type);
  PeerSums(const PeerSums&) = delete;
  PeerSums& operator=(const PeerSums&) = delete;
  ~PeerSums();

  /// Whether add_up() is for such matrices.
  [[nodiscard]] static bool takes(const Matrix& share, const Matrix& out);
  /// type: of the terms.
  void add_up(const Queue& queue, const Matrix& share, OutputMode output, const Matrix& out,
              DType type);

  /// Where a kernel may put the terms of the sum that add_up() is for next, of shares [rows, cols]
  /// and terms of make()'s type: of two ranks, and as many as are added up at once.
  std::optional<TermPlaces> next_places(int64_t rows, int64_t cols);
  /// All of them will be there, so that add_up() need not read the share.
  void are_sent() { is_sent_ = true; }

  /// See Backend::gather_columns(); whether that is for such a matrix, too.
  [[nodiscard]] static bool takes_columns(const Matrix& m, int64_t each);
  void gather_columns(const Queue& queue, const Matrix& m, int64_t each);

  /// For a kernel that adds up rows itself. Whether the present kernel may have another sum of a
  /// row of so many elements.
  [[nodiscard]] bool has_place_for(int64_t cols) const;
  /// That sum.
  Terms reserve(int64_t elements);
  /// The same with terms of a type of its own.
  Terms reserve(int64_t elements, DType dtype);
  /// No more for the present kernel, which makes this unset.
  UsedTerms end_kernel();

 private:
  PeerSums(DType type, int ranks) : type_(type), ring_(ranks) {}
  void add_up_words(const Queue& queue, const Matrix& share, bool adds, const Matrix& out,
                    DType type);

  DType type_;
  TermRing ring_;
  DeviceMemory own_;
  PeerMemory peers_;
  std::array<bool, kMostPeers> is_mapped_{};  // of another process
  uint32_t turn_ = 0;
  // Of the next sum, if next_places() was asked.
  Terms next_terms_;  // of one that goes word by word
  bool is_sent_ = false;
};

}  // namespace faststream
