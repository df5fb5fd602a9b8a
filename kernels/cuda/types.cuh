// Element types in device code: conversions, vector loads, and the choice of a type at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "support/dtype.h"
#include "support/error.h"

namespace faststream {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
/// Bytes 0..255 are the low mantissa bits of 2^23 + byte, so a permute and an add replace the
/// conversion instruction, which runs at a quarter of their rate.
__device__ inline float to_float(int8_t value) {
  const uint32_t biased = static_cast<uint8_t>(value) ^ 0x80U;
  return __uint_as_float(0x4b000000U | biased) - 8388736.0F;
}

template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// Element `index` of an array of floats whose type is known at run time only. Any other type is a
/// mistake in this program, and ends the kernel with an error.
__device__ inline float load_element(const void* data, DType type, int64_t index) {
  switch (type) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::f16:
      return to_float(static_cast<const __half*>(data)[index]);
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::i8:
    case DType::u8:
    case DType::packed:
      break;
  }
  __trap();
}
__device__ inline void store_element(void* data, DType type, int64_t index, float value) {
  switch (type) {
    case DType::f32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::f16:
      static_cast<__half*>(data)[index] = from_float<__half>(value);
      return;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(data)[index] = from_float<__nv_bfloat16>(value);
      return;
    case DType::i8:
    case DType::u8:
    case DType::packed:
      break;
  }
  __trap();
}

/// kCount consecutive elements as floats, in loads of up to 16 bytes; `data` is aligned to
/// min(16, bytes read).
template <int kCount, typename T>
__device__ inline void load_floats(const T* data, float (&out)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 16) {
    constexpr int kEach = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) {
      const uint4 raw = reinterpret_cast<const uint4*>(data)[i];
      T part[kEach];
      memcpy(part, &raw, sizeof raw);
#pragma unroll
      for (int j = 0; j < kEach; ++j) out[i * kEach + j] = to_float(part[j]);
    }
  } else if constexpr (kBytes == 8) {
    const uint2 raw = *reinterpret_cast<const uint2*>(data);
    T part[kCount];
    memcpy(part, &raw, sizeof raw);
#pragma unroll
    for (int j = 0; j < kCount; ++j) out[j] = to_float(part[j]);
  } else if constexpr (kBytes == 4) {
    const uint32_t raw = *reinterpret_cast<const uint32_t*>(data);
    T part[kCount];
    memcpy(part, &raw, sizeof raw);
#pragma unroll
    for (int j = 0; j < kCount; ++j) out[j] = to_float(part[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) out[j] = to_float(data[j]);
  }
}

/// The reverse, rounded, in stores of 16 bytes where these are multiples; `to` is aligned to that.
template <int kCount, typename T>
__device__ inline void store_floats(const float (&values)[kCount], T* to) {
  T elements[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) elements[i] = from_float<T>(values[i]);
  if constexpr (sizeof elements % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof elements / 16); ++i) {
      uint4 raw;
      memcpy(&raw, &elements[i * 16 / sizeof(T)], sizeof raw);
      reinterpret_cast<uint4*>(to)[i] = raw;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = elements[i];
  }
}

/// Sixteen bytes that are read once: they do not displace activations from the L1 cache.
__device__ inline uint4 load_streaming(const void* data) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(data));
  return value;
}

/// 2^exponent, within two units in the last place.
__device__ inline float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// Calls f with a zero of the element type that `type` names: float, __half or __nv_bfloat16.
template <typename F>
void with_float_type(DType type, const F& f) {
  switch (type) {
    case DType::f32:
      f(float{});
      return;
    case DType::f16:
      f(__half{});
      return;
    case DType::bf16:
      f(__nv_bfloat16{});
      return;
    case DType::i8:
    case DType::u8:
    case DType::packed:
      break;
  }
  throw Error("The GPU cannot compute in " + std::string(dtype_name(type)) +
              "; use a model file with f32, f16, bf16 or int8 weights.");
}

/// The same with int8_t for i8.
template <typename F>
void with_weight_type(DType type, const F& f) {
  if (type == DType::i8) {
    f(int8_t{});
  } else {
    with_float_type(type, f);
  }
}

constexpr int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace faststream
