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

/// The nearest integers, to even. (Adding 1.5 · 2^23 to a product is one instruction or two, as the
/// compiler likes, and now and then another integer.)
inline IntVec nearest(Vec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVec>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(v)));
#else
  constexpr float kRounder = 0x1.8p23F;
  return __builtin_convertvector((v + kRounder) - kRounder, IntVec);
#endif
}

/// As Kernels::quantize_i8.
inline float quantize_i8(const float* x, int64_t in, int8_t* quantized) {
  constexpr float kLimit = 127;
  const float largest = largest_magnitude(x, in);
  const float inverse = largest > 0 ? kLimit / largest : 0;
  const auto round = [&](Vec v, int8_t* to) { store_integers(to, nearest(v * inverse)); };
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
