// How warps share the stages of tiles.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/step_kernel/stage_reader.cuh"

namespace faststream::step_kernel {

/// Where stages are the warps' in turn, over all instructions: this warp's first one.
__device__ inline uint32_t first_in_turn(const StageReader& stages) {
  const uint32_t begin = stages.begin();
  return begin + (static_cast<uint32_t>(warp()) - begin) % kConsumers;
}

/// What the warp wrote to shared memory is there for who awaits the count.
__device__ inline void count(uint32_t& counter) {
  __syncwarp();
  if (lane() == 0) release_one_more(counter);
}
/// Then it is zero again.
__device__ inline void await_count(uint32_t& counter, int wanted) {
  while (acquire(counter) < static_cast<uint32_t>(wanted)) {
  }
  __syncwarp();
  if (lane() == 0) counter = 0;
}

/// The stages of the block's nth tile, one after the other.
class OwnStages {
 public:
  __device__ OwnStages(const StageReader& stages, int nth, int count, int of_tile)
      : of_tile_(nth, count, of_tile), next_(stages.begin() + of_tile_.first) {}

  [[nodiscard]] __device__ const Stage& await() const { return StageReader::await(next_); }
  __device__ void release() {
    StageReader::release(next_);
    next_ += of_tile_.step;
  }

 private:
  StagesOfTile of_tile_;
  uint32_t next_;
};

/// Adds the products of kPairs times 32 inputs of a tile's rows and x, as all columns, to a lane's
/// sums. Straight on: a loop would wait for each turn's last instruction.
template <int kPairs>
__device__ void multiply_pairs(uint32_t weights, uint32_t x, float (&sums)[4]) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int at = pair * kPairBytes;
    uint32_t columns[4];
    load_matrices<false>(columns, x + at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t rows[4];
      load_matrices<false>(rows, weights + at + half * kPairBytes / 2);
      mma_16x8x16<T>(sums, rows, columns[2 * half], columns[2 * half + 1]);
    }
  }
}

/// Adds the products of the next stages, of a tile, and of what is at x, to a lane's sums. Returns
/// the bias of its row.
__device__ inline float add_in_order(const ProductInstruction& p, uint32_t x, OwnStages& stages,
                                     float (&sums)[4]) {
  constexpr int kPairs = kChunkBytes / kPairBytes;
  const auto bytes = static_cast<int>(p.row_bytes);
  float bias = 0;
  for (int first = 0; first < bytes; first += kChunkBytes) {
    const Stage& stage = stages.await();
    const uint32_t weights =
        shared_address(stage.weights) + lane() % kTileRows * kPitch + lane() / kTileRows * 16;
    if (bytes - first >= kChunkBytes) {
      multiply_pairs<kPairs>(weights, x + first, sums);
    } else {
      for (int at = 0; at < bytes - first; at += kPairBytes) {
        multiply_pairs<1>(weights + at, x + first + at, sums);
      }
    }
    bias = stage.biases[lane() / 2];
    stages.release();
  }
  return bias;
}

}  // namespace faststream::step_kernel
