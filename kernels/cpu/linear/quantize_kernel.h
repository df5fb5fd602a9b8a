// Rounding a row of activations to eight bits. Everything is local to the including file.
#pragma once

#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

inline float largest_magnitude(const float* x, int64_t n) {
  Vec largest = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = larger(magnitude(load(x + i)), largest);
  }
  if (i < n) largest = larger(magnitude(widen_some(x + i, n - i)), largest);
  return largest_lane(largest);
}

inline void store_integers(int8_t* to, IntVec v) {
#if defined(__AVX512F__)
  const __m128i narrow = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v));
#else
  const auto narrow = __builtin_convertvector(v, ByteVec);
#endif
  __builtin_memcpy(to, &narrow, sizeof narrow);
}

/// As Kernels::quantize_i8.
inline float quantize_i8(const float* x, int64_t in, int8_t* quantized) {
  constexpr float kLimit = 127;
  constexpr float kRounder = 0x1.8p23F;
  const float largest = largest_magnitude(x, in);
  const float inverse = largest > 0 ? kLimit / largest : 0;
  const auto round = [&](Vec v, int8_t* to) {
    const Vec rounded = (v * inverse + kRounder) - kRounder;
    store_integers(to, __builtin_convertvector(rounded, IntVec));
  };
  int64_t i = 0;
  for (; i + kLanes <= in; i += kLanes) {
    round(load(x + i), quantized + i);
  }
  if (i < in) {
    int8_t rest[kLanes];
    round(widen_some(x + i, in - i), rest);
    __builtin_memcpy(quantized + i, rest, static_cast<size_t>(in - i));
  }
  return largest / kLimit;
}

}  // namespace
}  // namespace faststream
