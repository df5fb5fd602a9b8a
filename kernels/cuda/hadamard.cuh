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

/// Whether a warp can rotate rows of so many columns.
inline bool can_rotate(int64_t columns) { return columns % kHadamardRest == 0; }

class Hadamard {
 public:
  /// By all lanes of a warp.
  __device__ Hadamard() {
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned row = lane / 4;
    whole_ = Fragment(0x3e803e80 | bit(kSigns, lane) >> 16 | bit(kSigns ^ kOddRows, lane));
    if (row / 2 == lane % 4) rest_ = Fragment(0x3f003f00 | bit(kOddRows, lane));
  }

  /// Rotates eights of bf16, each of 256 columns of a warp. columns(i): how many of these there
  /// are; if not all, then a multiple of 64, in blocks of as many, the other lanes having zeros.
  template <int kCount, typename Columns>
  __device__ void rotate(uint4 (&eights)[kCount], const Columns& columns) const {
    // Several at once, as each has to wait for the tensor cores twice.
    constexpr int kAtOnce = kCount < 4 ? kCount : 4;
    static_assert(kCount % kAtOnce == 0);
#pragma unroll
    for (int first = 0; first < kCount; first += kAtOnce) {
      uint4 halfway[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) halfway[i] = multiplied_low(eights[first + i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        eights[first + i] = multiplied_high(halfway[i], columns(first + i) < kHadamardColumns);
      }
    }
  }

 private:
  // What a lane has of the matrix of 16 x 16, whose element of row r and column c has the sign that
  // is the parity of their common bits, of c's bits 0 and 3 and of its bits 1 and 2. For the rest
  // there are four matrices of 4 x 4, of numbers that bits 1 and 2 tell apart, in its place.
  struct Fragment {
    Fragment() = default;
    // near: the elements of an even row and column and of the column after it. Eight columns
    // further the second one changes its sign, eight rows and columns further the first one.
    explicit __device__ Fragment(uint32_t near)
        : near(near), far_columns(near ^ 0x80000000), far_both(near ^ 0x8000) {}
    __device__ void multiply(float (&sums)[4], uint32_t b0, uint32_t b1) const {
      mma_16x8x16<__nv_bfloat16>(sums, {near, near, far_columns, far_both}, b0, b1);
    }
    uint32_t near = 0;  // of rows that are eight apart
    uint32_t far_columns = 0;
    uint32_t far_both = 0;
  };

  // Of each lane: the sign that bits 1 and 2 of its row and columns give, and bit 0 of its row.
  static constexpr uint32_t kSigns = [] {
    uint32_t signs = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const unsigned common = lane / 8 & lane % 4;
      const bool negative = (common == 1 || common == 2) != (lane % 4 == 3);
      signs |= uint32_t{negative} << lane;
    }
    return signs;
  }();
  static constexpr uint32_t kOddRows = 0xf0f0f0f0;

  // A lane's bit, as the highest one.
  static __device__ uint32_t bit(uint32_t of_lanes, unsigned lane) {
    return of_lanes << (kWarp - 1 - lane) & 0x80000000;
  }
  // Over bits 0, 1, 3 and 4.
  [[nodiscard]] __device__ uint4 multiplied_low(const uint4& x) const {
    float low[4] = {};
    float high[4] = {};
    whole_.multiply(low, x.x, x.y);
    whole_.multiply(high, x.z, x.w);
    return make_uint4(pack(low[0], low[1]), pack(high[0], high[1]), pack(low[2], low[3]),
                      pack(high[2], high[3]));
  }
  // Over the others.
  [[nodiscard]] __device__ uint4 multiplied_high(const uint4& x, bool is_rest) const {
    const Fragment second = is_rest ? rest_ : whole_;
    float even[4] = {};
    float odd[4] = {};
    second.multiply(even, x.x, x.y);
    second.multiply(odd, x.z, x.w);
    return make_uint4(pack(even[0], even[1]), pack(odd[0], odd[1]), pack(even[2], even[3]),
                      pack(odd[2], odd[3]));
  }
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
