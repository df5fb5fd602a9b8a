// Sums over ranks by NCCL, which carries what kernels of our own then add up.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "backend/rank_link.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "ranks/nccl_library.h"

namespace faststream {

/// See Backend::sum_over_ranks(). Terms go to all ranks, or of large sums of more than two a piece
/// to each, whose sum then goes to all, and are added up in the order of ranks in float32: as
/// kernels/cpu/sum_over_ranks.h has it, to the last bit. NCCL's own reduction would take as many
/// bytes, but round at every rank that a sum passes, in an order that depends on its size, and so
/// make a text depend on its company.
class NcclSums {
 public:
  /// All ranks make theirs together. Null on all of them where NCCL is not found, ranks are threads
  /// and kernels are loaded when they are first used, or NCCL finds no way from one to the other,
  /// which two ranks on one GPU have not either; where it is asked for (nccl_is_asked_for(), of any
  /// rank) Error says which. Throws Error, too, when a GPU fails. The current GPU is the rank's.
  static std::unique_ptr<NcclSums> make(RankLink& link, bool is_asked_for);
  NcclSums(const NcclSums&) = delete;
  NcclSums& operator=(const NcclSums&) = delete;
  ~NcclSums();

  /// "NCCL 2.27.3"
  [[nodiscard]] std::string description() const;

  /// Whether add_up() is for such matrices. share: f32, without gaps, [rows, cols].
  [[nodiscard]] static bool takes(const Matrix& share);
  /// type: of the terms.
  void add_up(const Queue& queue, const Matrix& share, OutputMode output, const Matrix& out,
              DType type);

  /// See Backend::gather_columns(); whether that is for such a matrix, too.
  [[nodiscard]] bool takes_columns(int64_t each) const;
  void gather_columns(const Queue& queue, const Matrix& m, int64_t each);

 private:
  /// Written by the GPU and read by the host, and the other way round.
  struct Progress {
    uint32_t done = 0;    ///< the last turn that is over
    uint32_t failed = 0;  ///< 1: turns after this one have no results, and kernels fail
  };
  class Turn;

  NcclSums(NcclLibrary nccl, RankLink& link);
  [[nodiscard]] static std::string connect(RankLink& link, std::unique_ptr<NcclSums>& sums);
  [[nodiscard]] std::string connect(const NcclLibrary::Id& id);
  void try_out();
  void watch(const std::stop_token& stop);
  void check(int result) const;
  template <typename T>
  void add_up_rows(const Queue& queue, const Matrix& share, bool adds, const Matrix& out);
  void gather_rows_of_columns(const Queue& queue, const Matrix& m, int64_t each);
  [[nodiscard]] int64_t rows_of_columns(int64_t each) const;

  NcclLibrary nccl_;
  NcclLibrary::Communicator communicator_ = nullptr;
  int rank_ = 0;
  int count_ = 0;
  DeviceMemory terms_;  // of this rank
  DeviceMemory inbox_;
  PinnedMemory progress_memory_;
  Progress* progress_ = nullptr;
  std::atomic<uint32_t> begun_ = 0;  // turns
  std::mutex mutex_;                 // of who watches
  std::condition_variable_any is_over_;
  std::jthread watcher_;
};

}  // namespace faststream
