// The threads of a block that do a step's work, of which each part of it makes teams.
#pragma once

#include "kernels/cuda/row.cuh"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream::step_kernel {

__device__ inline int thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int warp() { return thread() / kWarp; }
__device__ inline int lane() { return thread() % kWarp; }

// Named barriers.
inline constexpr int kAll = 1;
inline constexpr int kTeam = 2;         // and the next: of an attention's warps
inline constexpr int kRowTeam = 4;      // and the next seven: of the threads of an expert's row
inline constexpr int kPair = kRowTeam;  // and the next: of warps that share an attention's tokens

__device__ inline void synchronize() { synchronize_threads(kAll, kConsumerThreads); }

/// Says whether the block looks for an instruction's input. The producers may see it late.
__device__ inline void look(bool looks) {
  if (thread() == 0) store_relaxed(shared_memory().looks, looks ? 1 : 0);
}

}  // namespace faststream::step_kernel
