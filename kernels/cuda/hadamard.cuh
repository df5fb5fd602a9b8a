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
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned row = lane / 4;
    const unsigned columns = lane % 4;
    constexpr uint32_t kQuarter = 0x3e80;
    constexpr uint32_t kHalf = 0x3f00;
    // Bits 1 and 2 of a column's number are `columns`, 1 and 2 of a row's row / 2.
    const unsigned sign = (__popc(row / 2 & columns) ^ (columns == 3 ? 1 : 0)) & 1;
    whole_ = Fragment(kQuarter, sign, row & 1);
    if (row / 2 == columns) rest_ = Fragment(kHalf, 0, row & 1);
  }

  /// Rotates eight bf16 a lane. columns: how many of the warp's 256 there are; if not all, then a
  /// multiple of 64, in blocks of as many, the other lanes having zeros.
  [[nodiscard]] __device__ uint4 rotated(const uint4& x, int columns) const {
    float low[4] = {};
    float high[4] = {};
    whole_.multiply(low, x.x, x.y);
    whole_.multiply(high, x.z, x.w);
    float even[4] = {};
    float odd[4] = {};
    const Fragment second = columns < kHadamardColumns ? rest_ : whole_;
    second.multiply(even, pack(low[0], low[1]), pack(high[0], high[1]));
    second.multiply(odd, pack(low[2], low[3]), pack(high[2], high[3]));
    return make_uint4(pack(even[0], even[1]), pack(odd[0], odd[1]), pack(even[2], even[3]),
                      pack(odd[2], odd[3]));
  }

 private:
  // What a lane has of the matrix of 16 x 16, whose element of row r and column c has the sign that
  // is the parity of their common bits, of c's bits 0 and 3 and of its bits 1 and 2. For the rest
  // there are four matrices of 4 x 4, of numbers that bits 1 and 2 tell apart, in its place.
  struct Fragment {
    Fragment() = default;
    // magnitude: of all elements, in bf16. sign: that bits 1 and 2 give. row: its bit 0. The
    // columns are two beside each other, and two eight further, the rows one and one eight further.
    __device__ Fragment(uint32_t magnitude, unsigned sign, unsigned row) {
      const auto pair = [magnitude](unsigned first, unsigned second) {
        return (magnitude | first << 15) | (magnitude | second << 15) << 16;
      };
      near = pair(sign, sign ^ row);
      far_columns = pair(sign, sign ^ row ^ 1);
      far_both = pair(sign ^ 1, sign ^ row);
    }
    __device__ void multiply(float (&sums)[4], uint32_t b0, uint32_t b1) const {
      mma_16x8x16<__nv_bfloat16>(sums, {near, near, far_columns, far_both}, b0, b1);
    }
    uint32_t near = 0;  // of both rows
    uint32_t far_columns = 0;
    uint32_t far_both = 0;
  };

  static __device__ uint32_t pack(float first, float second) {
    return pack_pair<__nv_bfloat16>(first, second);
  }

  Fragment whole_;
  Fragment rest_;
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
