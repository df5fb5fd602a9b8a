// Weights whose elements are codes of floats (support/weight_format.h), as kernels read them: fp8
// and mxfp4 in the order of CudaBackend::arrange().
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"
#include "support/weight_format.h"

namespace faststream {

/// packed_layout() and what follows from it, for a kernel that takes all formats.
struct CodedLayout {
  CodedLayout() = default;
  __host__ __device__ constexpr explicit CodedLayout(WeightFormat of)
      : format(of),
        block_bytes(static_cast<int32_t>(packed_block_bytes(of))),
        described_bytes(static_cast<int32_t>(faststream::described_bytes(of))),
        step_bytes(static_cast<int32_t>(kPackedStep * packed_layout(of).element_bits / 8)),
        group_shift(packed_layout(of).group == kPackedStep       ? 0
                    : packed_layout(of).group == 2 * kPackedStep ? 1
                                                                 : 2) {}

  WeightFormat format = WeightFormat::fp8;
  int32_t block_bytes = 0;
  int32_t described_bytes = 0;
  int32_t step_bytes = 0;   ///< of kPackedStep columns
  int32_t group_shift = 0;  ///< a group has so many steps, as a power of two
};

/// Calls f with a format that is a constant, of codes that are widened to multiply them: with
/// int4_g128 for all that differ from it in layout alone.
template <typename F>
__device__ auto with_codes(WeightFormat format, const F& f) {
  switch (format) {
    case WeightFormat::mxfp4:
      return f.template operator()<WeightFormat::mxfp4>();
    case WeightFormat::nf4:
      return f.template operator()<WeightFormat::nf4>();
    default:
      return f.template operator()<WeightFormat::int4_g128>();
  }
}

/// Of a format that is a constant, as with_codes() has it, the layout: `given` where several have
/// one.
template <WeightFormat kFormat>
__device__ constexpr CodedLayout layout_of(const CodedLayout& given) {
  return kFormat == WeightFormat::int4_g128 ? given : CodedLayout(kFormat);
}

/// Bytes of a row's codes of E4M3, in whole steps, behind which the scales of its groups are.
constexpr int64_t e4m3_code_bytes(int64_t cols) {
  return (cols + kPackedStep - 1) / kPackedStep * kPackedStep;
}

/// CodedGroup of the group that step `step` of a block is in, not of fp8.
struct DeviceGroup {
  float scale;
  float zero;

  __device__ DeviceGroup(WeightFormat format, const CodedLayout& layout, const uint8_t* block,
                         int step) {
    if (format == WeightFormat::mxfp4) {
      const uint32_t code = block[step];
      scale = __uint_as_float(code == 0 ? 0x00400000 : code << 23);
      zero = 0;
      return;
    }
    const uint32_t word = reinterpret_cast<const uint32_t*>(block)[step >> layout.group_shift];
    const bool has_zero = format != WeightFormat::nf4;
    scale = __uint_as_float(has_zero ? word & ~15U : word);
    zero = has_zero ? static_cast<float>(word & 15U) : 0.0F;
  }
};

/// What codes mean.
__device__ inline float e4m3_value(uint32_t code) {
  __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
  return __half2float(half);
}

/// Eight codes of E2M1 in a word, as CudaBackend::arrange() has them: of four pairs, those of
/// columns 2t and 2t + 1 of a step, of columns 8, 16 and 24 further. As few instructions as there
/// can be make a pair: sign, exponent and mantissa of its first code are in bits 15 and 8 to 6, of
/// its second 16 further, where those of two bf16 are, which mean numbers that are 2^126 too small.
/// The first pair's are there already; the next ones are behind a rotation by three and by six; the
/// last one's are in the bits that are left.
class E2m1Word {
 public:
  explicit __device__ E2m1Word(uint32_t word) : word_(word) {}
  /// pairs: their codes, each as a number of four bits, the second 16 bits further.
  explicit __device__ E2m1Word(const uint32_t (&pairs)[4])
      : word_(placed(pairs[0]) | rotated_left(placed(pairs[1]), kTurn) |
              rotated_left(placed(pairs[2]), 2 * kTurn) | scattered(pairs[3])) {}

  [[nodiscard]] __device__ uint32_t word() const { return word_; }
  [[nodiscard]] __device__ uint32_t pair(int n) const {
    switch (n) {
      case 0:
        return word_ & kPlaces;
      case 1:
      case 2:
        return __funnelshift_r(word_, word_, static_cast<uint32_t>(n * kTurn)) & kPlaces;
      default:
        return (word_ & kLeft) * (1U << 14 | 1U << 8 | 1U << 3) & kPlaces;
    }
  }
  /// Of a step's column what its code means.
  static __device__ float value(const uint32_t* step, int column) {
    const E2m1Word word(step[column % 8 / 2]);
    const uint32_t pair = word.pair(column / 8);
    return __uint_as_float(column % 2 == 0 ? pair << 16 : pair & 0xffff0000U) * 0x1p126F;
  }

 private:
  static constexpr uint32_t kPlaces = 0x81c081c0;
  static constexpr uint32_t kLeft = 0x001b001b;
  static constexpr int kTurn = 3;

  static __device__ uint32_t rotated_left(uint32_t bits, int by) {
    return bits << by | bits >> (32 - by);
  }
  static __device__ uint32_t placed(uint32_t pair) {
    return (pair & 0x00080008U) << 12 | (pair & 0x00070007U) << 6;
  }
  // What multiplication by three powers of two puts in its places.
  static __device__ uint32_t scattered(uint32_t pair) {
    return (pair & 0x00080008U) >> 2 | (pair & 0x00040004U) >> 2 | (pair & 0x00030003U) << 3;
  }

  uint32_t word_;
};

__device__ inline float nf4_value(uint32_t code) {
  constexpr float kValues[16] = {-1.0F,
                                 -0.6961928009986877F,
                                 -0.5250730514526367F,
                                 -0.39491748809814453F,
                                 -0.28444138169288635F,
                                 -0.18477343022823334F,
                                 -0.09105003625154495F,
                                 0.0F,
                                 0.07958029955625534F,
                                 0.16093020141124725F,
                                 0.24611230194568634F,
                                 0.33791524171829224F,
                                 0.44070982933044434F,
                                 0.5626170039176941F,
                                 0.7229568362236023F,
                                 1.0F};
  return kValues[code];
}
/// Integers of four bits, by adding to 2^23.
__device__ inline float four_bits_value(uint32_t code) {
  return __uint_as_float(0x4b000000 | code) - 0x1p23F;
}

/// Codes as the tensor cores' registers take them, of one channel's step: what lane 4g + t has of
/// two instructions of sixteen columns each, columns 2t and 2t + 1, and eight further, rounded to
/// bf16. Integers and moves are what a multiprocessor has too few of: codes become bf16 two by two,
/// by as few as there can be, and are scaled there.
class CodedStep {
 public:
  using Registers = uint32_t[2][2];

  /// What a group's description says, as widen() wants it.
  struct Group {
    uint32_t scale;  ///< pairs of bf16; of nf4 a float
    uint32_t rest;   ///< what the scale has beyond its upper half
    uint32_t zero;   ///< more than codes by 128
  };

  /// lane: of the warp, all of whose lanes call widen() together.
  explicit __device__ CodedStep(const CodedLayout& layout, int lane)
      : layout_(layout), first_(lane % 4 * 4), nf4_(nf4_value(lane % 16)) {}

  [[nodiscard]] __device__ const CodedLayout& layout() const { return layout_; }

  /// Whether a scale of the warp's sixteen channels in a block, `upper` and `lower` of this lane,
  /// is too large for one multiplication: of mxfp4 above 2, which models do not have.
  [[nodiscard]] __device__ bool has_large_scale(const uint8_t* upper, const uint8_t* lower) const {
    if (layout_.format != WeightFormat::mxfp4) return false;
    static_assert(described_bytes(WeightFormat::mxfp4) == 4 * sizeof(uint32_t), "a lane has four");
    const int word = first_ / 4;
    const uint32_t large = above_128(reinterpret_cast<const uint32_t*>(upper)[word]) |
                           above_128(reinterpret_cast<const uint32_t*>(lower)[word]);
    return __any_sync(kAllLanes, large != 0);
  }

  /// Calls f with what has_large_scale() said, of kFormat, as a constant.
  template <WeightFormat kFormat, typename F>
  static __device__ void with_scales(bool large, const F& f) {
    if (kFormat == WeightFormat::mxfp4 && large) {
      f.template operator()<kFormat == WeightFormat::mxfp4>();
    } else {
      f.template operator()<false>();
    }
  }

  /// Of the group that a step is in. block: of the lane's channel. kFormat: the layout's, as
  /// with_codes() has it; kLarge: as with_scales() has it.
  template <WeightFormat kFormat, bool kLarge>
  [[nodiscard]] __device__ Group group(const uint8_t* block, int step) const {
    if constexpr (kFormat == WeightFormat::mxfp4) {
      // By 2^(code - 127) what is 2^126 too small; or what is too small by half, as twice the scale
      // has an exponent of its own for any code.
      return {block[step] * kBothUnits + (kLarge ? 1U : 126U) * kBothUnits};
    }
    const CodedLayout layout = layout_of<kFormat>(layout_);
    const uint32_t word = reinterpret_cast<const uint32_t*>(block)[step >> layout.group_shift];
    if constexpr (kFormat == WeightFormat::nf4) return {word};
    const float scale = __uint_as_float(word & ~15U);
    const float rest = scale - __uint_as_float(word & 0xffff0000U);
    return {__byte_perm(word, 0, 0x3232), pack_pair<__nv_bfloat16>(rest, rest),
            (word & 15U) * 0x00010001U + 0x43004300U};
  }

  template <WeightFormat kFormat, bool kLarge>
  __device__ void widen(const Group& group, const uint8_t* block, int step, Registers& to) const {
    const CodedLayout layout = layout_of<kFormat>(layout_);
    const auto* from = reinterpret_cast<const uint32_t*>(block + layout.described_bytes +
                                                         step * kStepBytes + first_);
    // Of a word each half has a column of the pairs.
    const uint32_t word = from[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFormat == WeightFormat::mxfp4) {
        to[i / 2][i % 2] = e2m1_pair<kLarge>(E2m1Word(word).pair(i), group);
      } else if constexpr (kFormat == WeightFormat::nf4) {
        to[i % 2][i / 2] = nf4_pair(word >> 4 * i, group);
      } else {
        to[i % 2][i / 2] = integers(word >> 4 * i, group);
      }
    }
  }

 private:
  static constexpr uint32_t kBothUnits = 0x00800080;  // of exponents
  static constexpr int kStepBytes = kPackedStep / 2;  // codes have four bits

  static __device__ uint32_t multiply(uint32_t pair, uint32_t by) {
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(by));
    return product;
  }
  static __device__ uint32_t multiply_add(uint32_t pair, uint32_t by, uint32_t sum) {
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(by), "r"(sum));
    return result;
  }
  static __device__ uint32_t subtract(uint32_t pair, uint32_t other) {
    uint32_t result;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(other));
    return result;
  }
  // Numbers of at most five bits times the scale.
  static __device__ uint32_t scaled(uint32_t pair, const Group& group) {
    return multiply_add(pair, group.scale, multiply(pair, group.rest));
  }

  // Of which bytes is any above 128? Not zero then.
  static __device__ uint32_t above_128(uint32_t bytes) {
    return ((bytes & 0x7f7f7f7fU) + 0x7f7f7f7fU) & bytes & 0x80808080U;
  }

  // Products with powers of two are exact.
  template <bool kLarge>
  static __device__ uint32_t e2m1_pair(uint32_t pair, const Group& group) {
    constexpr uint32_t kTwoTo125 = 0x7e007e00;
    if constexpr (kLarge) pair = multiply(pair, kTwoTo125);
    return multiply(pair, group.scale);
  }
  [[nodiscard]] __device__ uint32_t nf4_pair(uint32_t codes, const Group& group) const {
    const float scale = __uint_as_float(group.scale);
    const float first = __shfl_sync(kAllLanes, nf4_, static_cast<int>(codes), 16);
    const float second = __shfl_sync(kAllLanes, nf4_, static_cast<int>(codes >> 16), 16);
    return pack_pair<__nv_bfloat16>(first * scale, second * scale);
  }
  // 128 and a code is a bf16.
  static __device__ uint32_t integers(uint32_t codes, const Group& group) {
    uint32_t numbers;  // an instruction, where the compiler takes two
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(numbers)
        : "r"(codes), "r"(0x000f000fU), "r"(0x43004300U));
    return scaled(subtract(numbers, group.zero), group);
  }

  CodedLayout layout_;
  int first_;
  float nf4_;  // what this lane's number means
};

}  // namespace faststream
