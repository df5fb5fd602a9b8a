// Groups of int4 weights (support/weight_format.h) as eight bits: vectors choose among the sixteen
// that a group's code means. Everything is local to the including file, but for the table.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/simd.h"
#include "support/weight_format.h"

namespace faststream {

/// What each code's group chooses from, in order: Int4Levels.
struct alignas(64) Int4Table {
  int8_t levels[256][16];
};
extern const Int4Table kInt4Table;  // int4_levels.cpp

namespace {

#if defined(__SSE2__)
inline __m128i levels_of(char code) {
  return load_raw<__m128i>(kInt4Table.levels[static_cast<uint8_t>(code)]);
}
#endif

/// A whole group, from its code and its elements.
inline void decode_group(char code, const char* elements, int8_t* to) {
#if defined(__AVX2__)
  const auto q = load_raw<__m128i>(elements);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1);
  const __m256i values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels_of(code)),
                                             _mm256_and_si256(both, _mm256_set1_epi8(15)));
  __builtin_memcpy(to, &values, sizeof values);
#else
  const int8_t* levels = kInt4Table.levels[static_cast<uint8_t>(code)];
  for (int64_t i = 0; i < kInt4GroupBytes; ++i) {
    const auto both = static_cast<uint8_t>(elements[i]);
    to[i] = levels[both & 15];
    to[i + kInt4GroupBytes] = levels[both >> 4];
  }
#endif
}

#if defined(__AVX512F__)
/// Groups 2 k and 2 k + 1 of a block.
inline __m512i int4_line(const char* block, int64_t k) {
  const auto q = load_raw<__m256i>(block + kInt4CodeBytes + k * 2 * kInt4GroupBytes);
  const __m512i twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
                                                 _mm512_castsi256_si512(q));
  const __m512i shifted = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  const __m512i levels = _mm512_mask_broadcast_i32x4(
      _mm512_broadcast_i32x4(levels_of(block[2 * k])), 0xff00, levels_of(block[2 * k + 1]));
  return _mm512_shuffle_epi8(levels, _mm512_and_si512(shifted, _mm512_set1_epi8(15)));
}
#endif

/// A whole block.
inline void decode_block(const char* block, int8_t* to) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int64_t k = 0; k < kInt4Block / 64; ++k) {
    _mm512_storeu_si512(to + k * 64, int4_line(block, k));
  }
#else
#pragma GCC unroll 16
  for (int64_t g = 0; g < kInt4Block / kInt4Group; ++g) {
    decode_group(block[g], block + kInt4CodeBytes + g * kInt4GroupBytes, to + g * kInt4Group);
  }
#endif
}

}  // namespace
}  // namespace faststream
