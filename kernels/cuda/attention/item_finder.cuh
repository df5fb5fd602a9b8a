// Which piece of a batch's work a block that stays does next.
#pragma once

#include "kernels/cuda/types.cuh"

namespace faststream {

/// Numbers the pieces of work of a batch's sequences, those of one sequence after the other, and
/// finds them for who asks for larger and larger numbers. For whole warps: each lane knows one of
/// 32 sequences. count(sequence): how many pieces it has.
class ItemFinder {
 public:
  struct Item {
    int sequence = 0;
    int nth = 0;    // of the sequence's
    int count = 0;  // the sequence's
  };

  template <typename Count>
  __device__ ItemFinder(int n_sequences, const Count& count) : n_sequences_(n_sequences) {
    number(count);
  }

  /// False when there are no more than `wanted`. The same for all lanes.
  template <typename Count>
  __device__ bool find(int wanted, const Count& count, Item& item) {
    while (wanted >= before_ + __shfl_sync(kAllLanes, until_, kWarp - 1)) {
      before_ += __shfl_sync(kAllLanes, until_, kWarp - 1);
      first_sequence_ += kWarp;
      if (first_sequence_ >= n_sequences_) return false;
      number(count);
    }
    const int lane = __ffs(__ballot_sync(kAllLanes, wanted - before_ < until_)) - 1;
    item.sequence = first_sequence_ + lane;
    item.count = __shfl_sync(kAllLanes, count_, lane);
    item.nth = wanted - before_ - (__shfl_sync(kAllLanes, until_, lane) - item.count);
    return true;
  }

 private:
  template <typename Count>
  __device__ void number(const Count& count) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int sequence = first_sequence_ + lane;
    count_ = sequence < n_sequences_ ? count(sequence) : 0;
    until_ = count_;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, until_, step);
      if (lane >= step) until_ += below;
    }
  }

  int n_sequences_;
  int first_sequence_ = 0;  // of the warp's 32
  int before_ = 0;          // items of the sequences before them
  int count_ = 0;           // of this lane's sequence
  int until_ = 0;           // of those up to it
};

}  // namespace faststream
