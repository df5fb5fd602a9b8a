// Rows of keys or values in a page as the tensor cores take them: of 16 bits, as they are or made
// of codes and their scale (support/kv_format.h). Whoever reads codes gets the same numbers, each
// scale · code rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/backend.h"
#include "kernels/cuda/mma.cuh"

namespace faststream {

/// Two 16-bit numbers in a word, times two others.
template <typename T>
__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Pair first;
  Pair second;
  memcpy(&first, &a, sizeof first);
  memcpy(&second, &b, sizeof second);
  const Pair product = __hmul2(first, second);
  uint32_t bits;
  memcpy(&bits, &product, sizeof bits);
  return bits;
}

/// What codes stand for is kCodeUnit times the numbers of T that are made of them, exactly.
///
/// The low bits of halves and bfloat16 of a suitable exponent are whole numbers; exponent and
/// mantissa of FP8 in their places are a power of two too small, which halves have room for.
template <typename T, KvFormat kFormat>
inline constexpr float kCodeUnit = 1;
template <>
inline constexpr float kCodeUnit<__half, KvFormat::int8> = 64;
template <>
inline constexpr float kCodeUnit<__half, KvFormat::fp8> = 256;

/// Four codes.
template <typename T, KvFormat kFormat>
__device__ inline void widen_codes(uint32_t codes, uint32_t& low, uint32_t& high) {
  if constexpr (kFormat == KvFormat::int8) {
    if constexpr (std::is_same_v<T, __half>) {
      // 0x4c00 + b is 16 + b / 64, and the byte of a code b - 128.
      const uint32_t bytes = codes ^ 0x80808080U;
      const auto less_18 = [](uint32_t spread) {
        __half2 pair;
        memcpy(&pair, &spread, sizeof pair);
        const __half2 value = __hsub2(pair, __half2half2(__float2half_rn(18.0F)));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        return bits;
      };
      low = less_18(__byte_perm(bytes, 0x4c4c4c4cU, 0x4140));
      high = less_18(__byte_perm(bytes, 0x4c4c4c4cU, 0x4342));
    } else {
      int8_to_bf16(codes, low, high);
    }
  } else {
    // Each byte as the upper one of a half; then sign apart, and the others further down.
    constexpr int kShift = std::is_same_v<T, __half> ? 1 : 4;
    const auto spread = [](uint32_t bytes) {
      return (bytes & 0x80008000U) | ((bytes & 0x7f007f00U) >> kShift);
    };
    low = spread(__byte_perm(codes, 0, 0x1404));
    high = spread(__byte_perm(codes, 0, 0x3424));
    if constexpr (!std::is_same_v<T, __half>) {
      const uint32_t power = 0x7b807b80U;  // 2^120
      low = multiply_pairs<T>(low, power);
      high = multiply_pairs<T>(high, power);
    }
  }
}

/// Eight codes in a row as numbers of T, times 1 / kCodeUnit.
template <typename T, KvFormat kFormat>
__device__ inline uint4 widen_eight(uint2 codes) {
  uint4 eight;
  widen_codes<T, kFormat>(codes.x, eight.x, eight.y);
  widen_codes<T, kFormat>(codes.y, eight.z, eight.w);
  return eight;
}
template <typename T, KvFormat kFormat>
__device__ inline uint4 widen_eight(uint4 eight) {
  return eight;  // plain
}

/// What numbers made of a head's codes are multiplied by.
template <typename T, KvFormat kFormat>
__device__ inline float factor_of(KvScale scale) {
  return __uint_as_float(uint32_t{scale.bits} << 16) * kCodeUnit<T, kFormat>;
}

/// Bytes of a page's keys or values of one head, of so many elements each.
template <typename T, KvFormat kFormat>
__host__ __device__ constexpr int head_bytes(int dim) {
  if constexpr (kFormat == KvFormat::plain) return kPageTokens * dim * static_cast<int>(sizeof(T));
  return kPageTokens * (dim + static_cast<int>(sizeof(KvScale)));
}

/// A head's keys or values in a page: [kPageTokens, dim], dim a multiple of eight, from token
/// `first` of the page on.
template <typename T, KvFormat kFormat>
class KvRows {
 public:
  __device__ KvRows(const void* head, int dim, int first)
      : rows_(static_cast<const std::byte*>(head) +
              first * dim * (kFormat == KvFormat::plain ? static_cast<int>(sizeof(T)) : 1)),
        scales_(reinterpret_cast<const KvScale*>(static_cast<const std::byte*>(head) +
                                                 kPageTokens * dim) +
                first),
        dim_(dim) {}

  /// Eight elements in memory.
  using Piece = std::conditional_t<kFormat == KvFormat::plain, uint4, uint2>;

  [[nodiscard]] __device__ int dim() const { return dim_; }
  /// Those of a token from `d` on, a multiple of eight.
  [[nodiscard]] __device__ Piece piece(int token, int d) const {
    constexpr int kBytes = sizeof(Piece) / 8;
    return *reinterpret_cast<const Piece*>(rows_ + (token * dim_ + d) * kBytes);
  }
  /// Of a token's codes.
  [[nodiscard]] __device__ KvScale scale(int token) const { return scales_[token]; }

 private:
  const std::byte* rows_;
  const KvScale* scales_;  // of codes
  int dim_;
};

/// Where a page's keys or values of one KV head begin.
template <typename T, KvFormat kFormat>
__device__ inline const std::byte* head_in_page(const KvLayer& kv, const void* cache, int dim,
                                                int64_t page, int kv_head) {
  return static_cast<const std::byte*>(cache) +
         (page * kv.n_kv_heads + kv_head) * head_bytes<T, kFormat>(dim);
}

}  // namespace faststream
