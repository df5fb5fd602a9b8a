// E4M3 by E4M3. For kernels that are compiled for sm_90a.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "support/weight_format.h"

namespace faststream::step_kernel {

/// A row's sum on its way through the groups of columns, as product_consumer_sm90a.cuh adds them.
struct E4m3Sum {
  float of_half = 0;
  float first_half = 0;  ///< while `of_half` is that of the second one

  [[nodiscard]] __device__ float whole(bool has_halves) const {
    return has_halves ? __fadd_rn(first_half, of_half) : of_half;
  }
};

/// The scales of a stage's groups.
class E4m3Scales {
 public:
  static constexpr int kBlocks = kChunkBytes / static_cast<int>(kPackedBlock);  // of a chunk
  static_assert(kBlocks == 2, "two lanes have a row");

  /// A stage whose copies have begun.
  __device__ E4m3Scales(const ProductInstruction& p, const Stage& stage) : p_(p), stage_(stage) {}

  /// Those of row lane / 2, of the groups of block lane % 2. Memory takes about as long as for the
  /// stage, whose number is n.
  [[nodiscard]] __device__ float4 ask(uint32_t n) const {
    constexpr int kHalf = kTileRows / 2;
    const int in_tile = lane() / 2;
    int output = stage_.tile * kTileRows + in_tile;
    int64_t row = output;
    if (p_.gated) {
      output = stage_.tile * kHalf + in_tile % kHalf;
      row = output + in_tile / kHalf * int64_t{p_.outputs};
    }
    const int block = stage_.chunk * kBlocks + lane() % 2;
    if (output >= p_.outputs || block * kPackedBlock >= p_.inputs) return {};
    if (p_.n_experts > 0) {  // as who copies it chose them
      const Choice& choice = shared_memory().one.choices[n % kProducerTeams * kTeamProducers];
      const int64_t expert = choice.experts[stage_.row + stage_.part];
      row += expert * (p_.gated ? 2 : 1) * p_.outputs;
    }
    const auto* scales = static_cast<const unsigned char*>(p_.weight) + row * p_.row_bytes +
                         p_.streamed_bytes + block * sizeof(float4);
    return __ldg(reinterpret_cast<const float4*>(scales));
  }

 private:
  const ProductInstruction& p_;
  const Stage& stage_;
};

/// The sums of the groups of a stage's chunk, by a warp of a warpgroup, all of whose warps make
/// them at the same time. The left operand are four warps' rows, sixteen each, of four chunks; the
/// right one all chunks of x, a column each, of which a warp takes the sums with its own. Pieces of
/// 16 codes of all columns are side by side in shared memory, then come the next ones.
template <int kColumns>
class E4m3Chunk {
 public:
  /// Nothing, which a warp multiplies that has no stage while others of its warpgroup have one.
  E4m3Chunk() = default;
  /// bytes: of a row of codes. column: of x.
  __device__ E4m3Chunk(const Stage& stage, int bytes, int column)
      : rows_(shared_address(stage.weights) + lane() % kTileRows * kPitch +
              lane() / kTileRows * 16),
        bytes_(bytes - stage.chunk * kChunkBytes),
        column_(column) {}

  __device__ void multiply() {
    constexpr int kPieceBytes = 16 * kColumns;
    const uint64_t x = matrix_descriptor(shared_memory().x, kPieceBytes, 8 * 16);
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      uint32_t codes[kTogether * kInstructions][4] = {};
#pragma unroll
      for (int i = 0; i < kTogether * kInstructions; ++i) {
        const int at = first * kGroupBytes + i * kInstructionBytes;
        if (at < bytes_) load_matrices<false>(codes[i], rows_ + at);
      }
      float products[kTogether][kColumns / 2];
      begin_products();
#pragma unroll
      for (int i = 0; i < kTogether * kInstructions; ++i) {
        const int at = first * kGroupBytes + i * kInstructionBytes;
        multiply_e4m3_rows<kColumns>(products[i / kInstructions], codes[i],
                                     x + at / 16 * kPieceBytes / 16, i % kInstructions > 0);
      }
      end_group();
      wait_for_groups<0>();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        pin(products[i]);
        sums_[first + i] = of_own_row(products[i]);
      }
    }
  }

  /// Gives the groups their scales. own: what E4m3Scales gave this lane.
  __device__ void take_scales(const float4& own) {
    const float of_block[kBlockGroups] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int of_row = lane() / 2 * 2 + group / kBlockGroups;
      scales_[group] = __shfl_sync(kAllLanes, of_block[group % kBlockGroups], of_row);
    }
  }
  /// Adds the groups times their scales, in order. half: the block of the chunk that the inputs'
  /// second half begins with, if it is of this chunk.
  __device__ void add_to(E4m3Sum& sum, int half) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group % kBlockGroups == 0 && group / kBlockGroups == half) {
        sum.first_half = sum.of_half;
        sum.of_half = 0;
      }
      sum.of_half = __fmaf_rn(sums_[group], scales_[group], sum.of_half);
    }
  }

 private:
  static constexpr auto kBlockGroups = static_cast<int>(packed_groups(WeightFormat::fp8));
  static constexpr int kGroups = E4m3Scales::kBlocks * kBlockGroups;
  static constexpr int kGroupBytes = kChunkBytes / kGroups;
  static constexpr int kInstructionBytes = 32;
  static constexpr int kInstructions = kGroupBytes / kInstructionBytes;
  static constexpr int kTogether = 2;  // groups

  // Of all columns' sums that of row lane / 2 in the warp's. Lane 4g + t has in [4j + 2h + i] that
  // of row 8h + g and column 8j + 2t + i.
  [[nodiscard]] __device__ float of_own_row(const float (&products)[kColumns / 2]) const {
    uint32_t upper = 0;
    uint32_t lower = 0;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      // Masks: the compiler would have an index go through local memory.
      const uint32_t mask = i == column_ / 8 * 2 + column_ % 2 ? ~0U : 0;
      upper |= __float_as_uint(products[i / 2 * 4 + i % 2]) & mask;
      lower |= __float_as_uint(products[i / 2 * 4 + 2 + i % 2]) & mask;
    }
    const int from = lane() / 2 % 8 * 4 + column_ % 8 / 2;
    upper = __shfl_sync(kAllLanes, upper, from);
    lower = __shfl_sync(kAllLanes, lower, from);
    return __uint_as_float(lane() < kWarp / 2 ? upper : lower);
  }

  uint32_t rows_ = 0;  // shared address of what this lane loads of matrices
  int bytes_ = 0;      // of a row
  int column_ = 0;
  float sums_[kGroups] = {};  // of row lane / 2
  float scales_[kGroups] = {};
};

}  // namespace faststream::step_kernel
