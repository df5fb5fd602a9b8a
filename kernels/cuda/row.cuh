// What happens to a row before it is multiplied: its norm, and its eight bits. Kernels of one
// operation and the one that runs a whole step (step_kernel/) do so, and a row's bits must not
// depend on which: sums are those of kRowLanes lanes, added in one order, and what is rounded is
// said.
#pragma once

#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/backend.h"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// Lanes of a sum over a row: lane l adds elements l, l + kRowLanes, ... A thread has one or
/// several.
inline constexpr int kRowLanes = 512;

/// What kThreads threads of a row tell each other in shared memory: by turns in one half and the
/// other, so that nobody waits until all have read.
template <int kThreads>
struct RowPartsOf {
  alignas(16) float halves[2][(kThreads > kRowLanes ? kThreads : kRowLanes) / kWarp];
};
using RowParts = RowPartsOf<kRowLanes>;

/// Threads that work on a row together; more than kRowLanes have no sum.
template <int kThreads>
class RowTeam {
 public:
  using Parts = std::conditional_t<(kThreads > kRowLanes), RowPartsOf<kThreads>, RowParts>;
  static constexpr int kTurns = kThreads > kRowLanes ? 1 : kRowLanes / kThreads;

  /// barrier: that no other threads of the block use meanwhile. parts: shared; nobody else's until
  /// the threads synchronize.
  __device__ RowTeam(int thread, int barrier, Parts& parts)
      : thread_(thread), barrier_(barrier), parts_(&parts) {}

  [[nodiscard]] __device__ int thread() const { return thread_; }

  /// The sum of all lanes' values, turn t's being those of lane t kThreads + thread.
  __device__ float sum(const float (&values)[kTurns]) {
    static_assert(kTurns * kThreads == kRowLanes);
    float* parts = other_half();
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const float part = warp_sum(values[turn]);
      if (thread_ % kWarp == 0) parts[(turn * kThreads + thread_) / kWarp] = part;
    }
    synchronize_threads(barrier_, kThreads);
    float total = 0;
    for_each_four<kRowLanes / kWarp>(parts, [&](float part) { total = __fadd_rn(total, part); });
    return total;
  }

  /// The largest of all threads' values, which are not negative, or NaN if one is: floats in the
  /// order of their bits.
  __device__ float largest(float value) {
    float* parts = other_half();
    auto most = __reduce_max_sync(kAllLanes, __float_as_uint(value));
    if (thread_ % kWarp == 0) parts[thread_ / kWarp] = __uint_as_float(most);
    synchronize_threads(barrier_, kThreads);
    for_each_four<kThreads / kWarp>(parts,
                                    [&](float part) { most = max(most, __float_as_uint(part)); });
    return __uint_as_float(most);
  }

 private:
  __device__ float* other_half() {
    half_ = 1 - half_;
    return parts_->halves[half_];
  }
  template <int kCount, typename Use>
  static __device__ void for_each_four(const float* values, const Use& use) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(values + i);
      use(four.x);
      if (i + 1 < kCount) use(four.y);
      if (i + 2 < kCount) use(four.z);
      if (i + 3 < kCount) use(four.w);
    }
  }

  int thread_;
  int barrier_;
  Parts* parts_;
  int half_ = 0;
};

/// One warp as such a team, whose threads have the first kWarpTurns · kWarp lanes: the others have
/// nothing of the row, and zeros change no sum.
template <int kWarpTurns>
class RowWarp {
 public:
  static constexpr int kTurns = kWarpTurns;

  __device__ float sum(const float (&values)[kTurns]) const {
    float total = 0;
#pragma unroll
    for (const float value : values) total = __fadd_rn(total, warp_sum(value));
    return total;
  }
};

/// A norm with a row's own mean and deviation.
struct MeasuredNorm {
  Norm norm;
  float mean = 0;
  float factor = 1;

  /// Of element c.
  [[nodiscard]] __device__ float apply(float value, int64_t c) const {
    if (norm.kind == NormKind::none) return value;
    return apply(value, norm.weight[c], norm.bias != nullptr ? norm.bias[c] : 0);
  }
  /// With the weight and the bias of its element, where there is a norm.
  [[nodiscard]] __device__ float apply(float value, float weight, float bias) const {
    value = __fmul_rn(__fmul_rn(value - mean, factor), weight);
    return norm.bias != nullptr ? __fadd_rn(value, bias) : value;
  }
};

/// for_each(add) calls add(turn, x) for each element of the thread's lanes, in the order of the
/// sum.
template <typename Team, typename ForEach>
__device__ MeasuredNorm measure(int64_t n, const Norm& norm, Team& team, const ForEach& for_each) {
  MeasuredNorm measured;
  measured.norm = norm;
  if (norm.kind == NormKind::none) return measured;
  if (norm.kind == NormKind::layer) {
    float sums[Team::kTurns] = {};
    for_each([&](int turn, float x) { sums[turn] = __fadd_rn(sums[turn], x); });
    measured.mean = team.sum(sums) / static_cast<float>(n);
  }
  float squares[Team::kTurns] = {};
  for_each([&](int turn, float x) {
    squares[turn] = __fmaf_rn(x - measured.mean, x - measured.mean, squares[turn]);
  });
  measured.factor = 1.0F / sqrtf(team.sum(squares) / static_cast<float>(n) + norm.eps);
  return measured;
}

/// A row in memory. kVector: 8, or 1, as kRowLanes says.
template <int kVector, int kThreads, typename X>
__device__ MeasuredNorm measure_row(const X* row, int64_t n, const Norm& norm,
                                    RowTeam<kThreads>& team) {
  static_assert(kThreads == kRowLanes);
  return measure(n, norm, team, [&](const auto& add) {
#pragma unroll 4
    for (int64_t c = kVector * team.thread(); c < n; c += kVector * kThreads) {
      float values[kVector];
      load_floats(row + c, values);
#pragma unroll
      for (const float value : values) add(0, value);
    }
  });
}

/// How the values of a row become numbers of which none is larger than `most`, 127 where they are
/// integers: value = number · scale.
class RowScale {
 public:
  explicit __device__ RowScale(float most = 127) : most_(most) {}

  __device__ void see(float value) {
    // The maximum with a NaN is NaN.
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest_) : "f"(fabsf(value)));
  }
  /// Eights of bf16.
  template <int kCount>
  __device__ void see(const uint4 (&eights)[kCount]) {
    __nv_bfloat162 largest = {};
#pragma unroll
    for (const uint4& eight : eights) {
      __nv_bfloat162 pairs[4];
      memcpy(pairs, &eight, sizeof pairs);
#pragma unroll
      for (const __nv_bfloat162 pair : pairs) largest = __hmax2_nan(largest, __habs2(pair));
    }
    see(to_float(largest.x));
    see(to_float(largest.y));
  }
  /// What all threads of the team have.
  template <int kThreads>
  __device__ void join(RowTeam<kThreads>& team) {
    largest_ = team.largest(largest_);
  }

  /// No byte can say NaN or infinity: the scale does.
  [[nodiscard]] __device__ float scale() const { return largest_ / most_; }
  [[nodiscard]] __device__ float inverse() const { return largest_ > 0 ? most_ / largest_ : 0.0F; }

 private:
  float most_;
  float largest_ = 0;
};

/// A float rounded to an integer, by an addition: a conversion takes four times as long.
struct QuantizedValue {
  /// inverse: RowScale's of a row with this value, so that the integer is from -127 to 127;
  /// anything for NaN.
  __device__ QuantizedValue(float value, float inverse) {
    shifted = __fadd_rn(__fmul_rn(value, inverse), kShift);
  }
  [[nodiscard]] __device__ float as_float() const { return shifted - kShift; }
  /// Whose lowest byte is the integer.
  [[nodiscard]] __device__ uint32_t bits() const { return __float_as_uint(shifted); }

  static constexpr float kShift = 3 << 22;  // from 2^23 to 2^24 floats are integers
  float shifted;
};

inline constexpr float kLargestE4m3 = 448;

/// Two values' codes of E4M3, the first in the lower byte.
__device__ inline uint32_t two_e4m3(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}
/// Codes of eight values, as a row of codes has them (coded_place()): lanes 2i and 2i + 1, which
/// both call this, have sixteen columns, of which the first eight and the others go by turns.
__device__ inline uint2 e4m3_codes(const float (&values)[8], float inverse) {
  const auto four = [&](int i) {
    return two_e4m3(values[i] * inverse, values[i + 1] * inverse) |
           two_e4m3(values[i + 2] * inverse, values[i + 3] * inverse) << 16;
  };
  const uint32_t low = four(0);
  const uint32_t high = four(4);
  const auto lane = threadIdx.x % kWarp;
  const bool is_second = lane % 2 != 0;
  const uint32_t other = __shfl_xor_sync(3U << (lane & ~1U), is_second ? low : high, 1);
  const uint32_t even = is_second ? other : low;
  const uint32_t odd = is_second ? high : other;
  return make_uint2(__byte_perm(even, odd, 0x5140), __byte_perm(even, odd, 0x7362));
}

/// Four values' bytes, the first in the lowest one.
__device__ inline uint32_t quantized(const float (&values)[4], float inverse) {
  const auto pair = [&](int i) {
    constexpr unsigned kLowestOfBoth = 0x40;
    return __byte_perm(QuantizedValue(values[i], inverse).bits(),
                       QuantizedValue(values[i + 1], inverse).bits(), kLowestOfBoth);
  };
  return __byte_perm(pair(0), pair(2), 0x5410);
}

}  // namespace faststream
