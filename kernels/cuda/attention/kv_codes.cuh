// Keys and values to codes and back, in floats (support/kv_format.h).
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/types.cuh"
#include "support/hadamard.h"

namespace faststream {

/// What a code stands for.
__device__ inline float decode_code(KvFormat format, uint8_t code) {
  if (format == KvFormat::int8) return static_cast<float>(static_cast<int8_t>(code));
  const float magnitude = __uint_as_float((code & 0x7fU) << 20) * 0x1p120F;
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

__device__ inline float scale_of(KvScale scale) {
  return __uint_as_float(uint32_t{scale.bits} << 16);
}

/// Rotates a block of kEach · 32 elements in shared memory: by a warp, in registers.
template <int kEach>
__device__ inline void rotate_block_of(float* block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr float kFactor = kEach == 2 ? 0.125F : 0.0625F;  // 1 / sqrt(64), 1 / sqrt(256)
  static_assert(kEach == 2 || kEach == 8);
  float elements[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = lane + k * kWarp;
    elements[k] = block[i] * (hadamard_negates(i) ? -kFactor : kFactor);
  }
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
    for (float& element : elements) {
      const float other = __shfl_xor_sync(kAllLanes, element, distance);
      element = (lane & distance) != 0 ? other - element : element + other;
    }
  }
#pragma unroll
  for (int distance = 1; distance < kEach; distance *= 2) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if ((k & distance) != 0) continue;
      const float a = elements[k];
      const float b = elements[k + distance];
      elements[k] = a + b;
      elements[k + distance] = a - b;
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) block[lane + k * kWarp] = elements[k];
}

/// Rotates a head's elements in shared memory, which the warp's lanes have written: by a warp.
__device__ inline void rotate_head_elements(float* head, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
  for (int first = 0; first < dim;) {
    const auto n = static_cast<int>(hadamard_block(dim - first));
    float* block = head + first;
    first += n;
    if (n == 64) {
      rotate_block_of<2>(block);
      continue;
    }
    if (n == 256) {
      rotate_block_of<8>(block);
      continue;
    }
    const float factor = 1.0F / sqrtf(static_cast<float>(n));
    for (int i = lane; i < n; i += kWarp) block[i] *= hadamard_negates(i) ? -factor : factor;
    __syncwarp();
    for (int distance = 1; distance < n; distance *= 2) {
      for (int pair = lane; pair < n / 2; pair += kWarp) {
        const int i = 2 * pair - (pair & (distance - 1));  // distance: a power of two
        const float a = block[i];
        const float b = block[i + distance];
        block[i] = a + b;
        block[i + distance] = a - b;
      }
      __syncwarp();
    }
  }
  __syncwarp();
}

/// A number of at most 448 rounded to nearest even.
__device__ inline uint8_t to_e4m3(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t code =
      magnitude < 0x3c800000U
          ? __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0x1p14F)) -
                __float_as_uint(0x1p14F)
          : (magnitude + 0x7ffffU + ((magnitude >> 20) & 1U) - (120U << 23)) >> 20;
  return static_cast<uint8_t>((bits >> 24 & 0x80U) | code);
}

/// Stores codes of elements in shared memory as row `row` of a page's head: by a warp, as
/// encode_kv() has it.
__device__ inline void encode_head(KvFormat format, const float* elements, int dim, int row,
                                   std::byte* head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
  uint32_t largest = 0;
  for (int i = lane; i < dim; i += kWarp) {
    largest = max(largest, __float_as_uint(elements[i]) & 0x7fffffffU);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  KvScale scale;
  const bool is_finite = largest < 0x7f800000U;
  const float exact = __fdiv_rn(__uint_as_float(largest), largest_code(format));
  scale.bits = is_finite ? static_cast<uint16_t>((__float_as_uint(exact) + 0xffffU) >> 16) : 0x7fc0;
  const float rounded = scale_of(scale);
  const float inverse = is_finite && rounded >= 0x1p-126F ? __fdiv_rn(1.0F, rounded) : 0.0F;
  auto* codes = reinterpret_cast<uint8_t*>(head) + row * dim;
  for (int i = lane; i < dim; i += kWarp) {
    const float x = __fmul_rn(is_finite ? elements[i] : 0.0F, inverse);
    codes[i] = format == KvFormat::int8 ? static_cast<uint8_t>(__float2int_rn(x)) : to_e4m3(x);
  }
  if (lane == 0) reinterpret_cast<KvScale*>(head + kPageTokens * dim)[row] = scale;
}

}  // namespace faststream
