// What a consumer's warp takes from the ring.
#pragma once

#include "kernels/cuda/step_kernel/consumer_threads.cuh"

namespace faststream::step_kernel {

/// A warp's place in the ring, over all instructions. An instruction's stages follow those of the
/// one before it; which of them are whose, the instruction says.
class StageReader {
 public:
  /// The number of the present instruction's first stage, of all.
  [[nodiscard]] __device__ uint32_t begin() const { return begin_; }
  /// The present instruction has so many stages: the next one begins behind them.
  __device__ void pass(int count) { begin_ += count; }
  __device__ void pass_to(uint32_t end) { begin_ = end; }

  /// Stage number n, once it is full: none before one that the warp has had.
  static __device__ Stage& await(uint32_t n) {
    Stage& stage = await_begun(n);
    const Place place(n);
    wait_for_phase(shared_memory().full[place.stage], place.parity);
    return stage;
  }
  /// Once its copies have begun, so that it says what will be there. A warp may be several rounds
  /// of the ring ahead of the others, where a barrier's parity would say nothing.
  static __device__ Stage& await_begun(uint32_t n) {
    while (acquire(shared_memory().announced[n % kProducerTeams]) <= n) __nanosleep(20);
    return shared_memory().ring[Place(n).stage];
  }
  /// By all lanes, once they have what they want of stage number n.
  static __device__ void release(uint32_t n) {
    __syncwarp();
    if (lane() == 0) arrive(shared_memory().empty[Place(n).stage]);
  }

 private:
  uint32_t begin_ = 0;
};

}  // namespace faststream::step_kernel
