// The rotation of support/hadamard.h on the tensor cores: a block of 256 columns is a matrix of 16
// x 16 that is multiplied by the same matrix from both sides, as eight bits of a column's number
// are two times four.
//
// A lane has eight columns in a row, a warp 256. The first product is over bits 0, 1, 3 and 4 of a
// column's number, which the lanes of a fragment's columns have; what it gives is, rounded to bf16,
// just what the second one takes over bits 2, 5, 6 and 7, and what that gives is where it was. So
// nothing is exchanged: four instructions of the tensor cores for eight columns.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"
#include "support/hadamard.h"

namespace faststream {

/// Columns that a warp rotates at a time, and into how many there may be left.
inline constexpr int kHadamardColumns = kLargestHadamardBlock;
inline constexpr int kHadamardRest = kHadamardColumns / 4;

class Hadamard {
 public:
  /// By all lanes of a warp.
  __device__ Hadamard() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      const int row = lane / 4 + 8 * (i % 2);
      const int column = lane % 4 * 2 + 8 * (i / 2);
      whole_[i] = pair(row, column, false);
      rest_[i] = pair(row, column, true);
    }
  }

  /// Rotates eight bf16 a lane. columns: how many of the warp's 256 there are; if not all, then a
  /// multiple of 64, in blocks of as many, the other lanes having zeros.
  [[nodiscard]] __device__ uint4 rotated(const uint4& x, int columns) const {
    float low[4] = {};
    float high[4] = {};
    mma_16x8x16<__nv_bfloat16>(low, whole_, x.x, x.y);
    mma_16x8x16<__nv_bfloat16>(high, whole_, x.z, x.w);
    uint32_t second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) second[i] = columns < kHadamardColumns ? rest_[i] : whole_[i];
    float even[4] = {};
    float odd[4] = {};
    mma_16x8x16<__nv_bfloat16>(even, second, pack(low[0], low[1]), pack(high[0], high[1]));
    mma_16x8x16<__nv_bfloat16>(odd, second, pack(low[2], low[3]), pack(high[2], high[3]));
    return make_uint4(pack(even[0], even[1]), pack(odd[0], odd[1]), pack(even[2], even[3]),
                      pack(odd[2], odd[3]));
  }

 private:
  static __device__ uint32_t pack(float first, float second) {
    return pack_pair<__nv_bfloat16>(first, second);
  }
  // Elements (row, column) and (row, column + 1) of the matrix of 16 x 16: a Hadamard matrix whose
  // columns have their signs, times 1/4. in_blocks: four of 4 x 4 of numbers that bits 1 and 2 tell
  // apart, times 1/2.
  static __device__ uint32_t pair(int row, int column, bool in_blocks) {
    return element(row, column, in_blocks) | element(row, column + 1, in_blocks) << 16;
  }
  static __device__ uint32_t element(int row, int column, bool in_blocks) {
    constexpr uint32_t kQuarter = 0x3e80;
    constexpr uint32_t kHalf = 0x3f00;
    constexpr uint32_t kSign = 0x8000;
    constexpr int kBlockBits = 6;
    if (in_blocks && ((row ^ column) & kBlockBits) != 0) return 0;
    const int outer = column & column >> 3;
    const int inner = in_blocks ? 0 : column >> 1 & column >> 2;
    const int sign = (__popc(row & column & (in_blocks ? ~kBlockBits : ~0)) ^ outer ^ inner) & 1;
    return (in_blocks ? kHalf : kQuarter) | (sign != 0 ? kSign : 0);
  }

  uint32_t whole_[4];
  uint32_t rest_[4];
};

/// Column i of a row of n, rotated: slowly, for rows of any length that begin anywhere.
template <typename X>
__device__ float rotated_column(const X* x, int64_t n, int64_t i) {
  int64_t first = 0;
  int64_t block = kLargestHadamardBlock;
  for (; block > 1; block /= 4) {
    const int64_t end = first + (n - first) / block * block;
    if (i < end) {
      first += (i - first) / block * block;
      break;
    }
    first = end;
  }
  if (block == 1) return to_float(x[i]);
  const auto place = static_cast<unsigned>(i - first);
  float sum = 0;
  for (unsigned j = 0; j < block; ++j) {
    const float value = to_float(x[first + j]);
    const bool negative = (__popc(place & j) & 1) != static_cast<int>(hadamard_negates(j));
    sum = negative ? __fsub_rn(sum, value) : __fadd_rn(sum, value);
  }
  return sum * rsqrtf(static_cast<float>(block));
}

}  // namespace faststream
