// What the warps of a program's block share.
#pragma once

#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/program/program.h"
#include "kernels/cuda/program/rows.cuh"
#include "kernels/cuda/row.cuh"

namespace faststream::program {

using T = __nv_bfloat16;  // activations, keys and values

inline constexpr int kConsumers = 8;  // warps
inline constexpr int kConsumerThreads = kConsumers * kWarp;
inline constexpr int kThreads = kConsumerThreads + kWarp;
inline constexpr int kTileRows = 16;
inline constexpr int kChunkBytes = 1024;         // of a weight's row
inline constexpr int kPitch = kChunkBytes + 16;  // between rows of a stage
inline constexpr int kStageBytes = kTileRows * kPitch;
inline constexpr int kFloatChunkBytes = 16384;  // of the one row of a tile of floats
inline constexpr int kStages = 10;
inline constexpr uint32_t kOnTheWay = 4;  // stages
static_assert(kFloatChunkBytes <= kStageBytes);

using Place = PipelinePlace<kStages>;

/// What several warps make of a tile's part: each its chunks.
struct PartSums {
  int32_t sums[kTileRows];    // of the chunks but the last
  float values[kTileRows];    // of the part, where the tile has several
  uint32_t chunks;            // that are in `sums`
  uint32_t parts;             // that have `values`: of the tile, at its first part
};
/// Parts in turn. A warp is at most two rings of stages ahead of another, so none is used twice at
/// a time.
inline constexpr int kPartSums = 64;
static_assert(kPartSums >= 2 * kStages + kMaxExpertsUsed);

struct Shared {
  alignas(128) unsigned char ring[kStages][kStageBytes];
  /// What is multiplied: rows of the weight's type, or of the program's. In attention something
  /// else.
  alignas(16) unsigned char x[kMaxInputBytes];
  alignas(16) Instruction instruction_memory[2];
  Instruction producer_instruction;
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t routed;     // experts are chosen
  uint32_t announced;  // stages, in all, whose copies have begun
  float parts[kRowLanes / kWarp];
  float row_scales[kMaxExpertsUsed];
  int32_t experts[kMaxExpertsUsed];
  float expert_weights[kMaxExpertsUsed];
  alignas(16) float logits[kMaxExpertsChosenFrom];
  alignas(16) std::byte choice[kChoiceBytes];
  PartSums part_sums[kPartSums];
  alignas(16) T heads[kConsumers][kMaxHeadDim];  // a warp's, before it is transformed
  bool is_last[2];
};

/// The block's.
inline __device__ Shared& shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

/// Which of an instruction's tiles are this block's: `count` from `first` on, each as many further
/// as there are blocks.
struct TilesOfBlock {
  explicit __device__ TilesOfBlock(const ProductInstruction& p)
      : first(static_cast<int>(blockIdx.x) - p.dealt) {
    if (first < 0) first += static_cast<int>(gridDim.x);
    count = p.tiles_of_each + (first < p.tiles_more ? 1 : 0);
  }
  [[nodiscard]] __device__ int operator[](int n) const {
    return first + n * static_cast<int>(gridDim.x);
  }
  int first;
  int count;
};

/// A product of experts whose results are rows of their own, expert after expert.
inline __device__ bool in_turn(const ProductInstruction& p) {
  return p.n_experts > 0 && !p.sums_experts;
}

/// Parts of a tile's work: experts whose results it sums.
inline __device__ int parts_of(const ProductInstruction& p) {
  return p.sums_experts ? p.router.used : 1;
}

}  // namespace faststream::program
