// Vectors of floats as wide as the instruction set that the including file is compiled for, on the
// vector extensions of GCC and Clang. Everything is local to the including file.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace faststream {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(4 * kLanes)));
using IntVec = int32_t __attribute__((vector_size(4 * kLanes)));
using WordVec = uint32_t __attribute__((vector_size(4 * kLanes)));
using LongVec = uint64_t __attribute__((vector_size(4 * kLanes)));
using HalfWordVec = uint16_t __attribute__((vector_size(2 * kLanes)));
using ByteVec = int8_t __attribute__((vector_size(kLanes)));

/// Storage of a bfloat16 and of an IEEE half.
struct StoredBf16 {
  uint16_t bits;
};
struct StoredF16 {
  uint16_t bits;
};
/// Of a float of 8 bits as KvFormat::fp8 has them.
struct StoredE4m3 {
  uint8_t bits;
};

template <class To, class From>
inline To load_raw(const From* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof to);
  return to;
}

inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* from) { return load_raw<Vec>(from); }
inline void store(float* to, Vec v) { __builtin_memcpy(to, &v, sizeof v); }

// Whole vectors of any element type, as floats.
inline Vec widen(const float* from) { return load(from); }
inline Vec widen(const StoredBf16* from) {
#if defined(__AVX512F__)
  const auto wide = reinterpret_cast<WordVec>(_mm512_cvtepu16_epi32(load_raw<__m256i>(from)));
#elif defined(__AVX2__)
  const auto wide = reinterpret_cast<WordVec>(_mm256_cvtepu16_epi32(load_raw<__m128i>(from)));
#else
  const auto wide = __builtin_convertvector(load_raw<HalfWordVec>(from), WordVec);
#endif
  return reinterpret_cast<Vec>(wide << 16);
}
inline Vec widen(const int8_t* from) {
  // GCC 12 makes single steps of byte vectors' conversions, so that they need intrinsics.
#if defined(__AVX512F__)
  const auto wide = reinterpret_cast<IntVec>(_mm512_cvtepi8_epi32(load_raw<__m128i>(from)));
#elif defined(__AVX2__)
  const auto wide =
      reinterpret_cast<IntVec>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load_raw<int64_t>(from))));
#else
  const auto wide = __builtin_convertvector(load_raw<ByteVec>(from), IntVec);
#endif
  return __builtin_convertvector(wide, Vec);
}
inline Vec widen(const StoredF16* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_cvtph_ps(load_raw<__m256i>(from)));
#elif defined(__F16C__)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(load_raw<__m128i>(from)));
#else
  // The exponent moves from bias 15 to 127 by an exact product, which also normalizes subnormals.
  const auto bits = __builtin_convertvector(load_raw<HalfWordVec>(from), WordVec);
  const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fffU) << 13) * 0x1p112F;
  const auto not_finite = reinterpret_cast<WordVec>((bits & 0x7c00U) == 0x7c00U) & 0x7f800000U;
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(magnitude) | not_finite |
                               ((bits & 0x8000U) << 16));
#endif
}

/// From the bits of floats of 8 bits, in the lowest byte of each word; other bytes are anything.
/// The exponent moves from bias 7 to 127 by an exact product, as that of halves does.
inline Vec widen_e4m3(WordVec words) {
  const Vec magnitude = reinterpret_cast<Vec>((words & 0x7fU) << 20) * 0x1p120F;
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(magnitude) | ((words & 0x80U) << 24));
}
inline Vec widen(const StoredE4m3* from) {
#if defined(__AVX512F__)
  return widen_e4m3(reinterpret_cast<WordVec>(_mm512_cvtepu8_epi32(load_raw<__m128i>(from))));
#elif defined(__AVX2__)
  return widen_e4m3(
      reinterpret_cast<WordVec>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load_raw<int64_t>(from)))));
#else
  return widen_e4m3(__builtin_convertvector(load_raw<ByteVec>(from), WordVec));
#endif
}

/// The first `count` elements, then zeros; reads nothing beyond them.
template <class T>
inline Vec widen_some(const T* from, int64_t count) {
  T elements[kLanes] = {};
  __builtin_memcpy(elements, from, static_cast<size_t>(count) * sizeof(T));
  return widen(elements);
}

inline void store_some(float* to, Vec v, int64_t count) {
  __builtin_memcpy(to, &v, static_cast<size_t>(count) * sizeof(float));
}

inline Vec select(IntVec mask, Vec yes, Vec no) { return mask ? yes : no; }

inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return select(a > b, a, b);
#endif
}

/// a b + c, rounded once where the processor can: of two products that are added the compiler would
/// choose which to round, in each place anew.
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Vec>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  return a * b + c;
#endif
}

inline Vec magnitude(Vec v) {
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(v) & 0x7fffffffU);
}

/// Bit i says whether lane i of a comparison's result is true.
inline uint32_t lane_bits(IntVec mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(mask)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  }
  return bits;
#endif
}

/// Floats in [0, 2^32), rounded down.
inline WordVec to_words(Vec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<WordVec>(_mm512_cvttps_epu32(reinterpret_cast<__m512>(v)));
#else
  const IntVec is_large = v >= 0x1p31F;
  const Vec small = select(is_large, v - 0x1p31F, v);
  return reinterpret_cast<WordVec>(__builtin_convertvector(small, IntVec)) +
         (reinterpret_cast<WordVec>(is_large) & 0x80000000U);
#endif
}

/// The upper halves of 64-bit products of even elements, at their places; odd elements are
/// anything.
inline WordVec multiply_even(WordVec a, WordVec b) {
#if defined(__AVX512F__)
  const __m512i products =
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
  return reinterpret_cast<WordVec>(_mm512_shuffle_epi32(products, _MM_PERM_DDBB));
#elif defined(__AVX2__)
  const __m256i products =
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return reinterpret_cast<WordVec>(_mm256_shuffle_epi32(products, 0xf5));
#elif defined(__SSE2__)
  const __m128i products =
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b));
  return reinterpret_cast<WordVec>(_mm_shuffle_epi32(products, 0xf5));
#else
  const auto low = [](WordVec v) { return reinterpret_cast<LongVec>(v) & 0xffffffffU; };
  return reinterpret_cast<WordVec>((low(a) * low(b)) >> 32);
#endif
}

inline float sum_of_lanes(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) {
    sum += v[i];
  }
  return sum;
#endif
}

/// Of lanes that are not NaN.
inline float largest_lane(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) {
    largest = v[i] > largest ? v[i] : largest;
  }
  return largest;
#endif
}

constexpr float kLeastExponent = -87;  // e^x nears the smallest normal number there

/// e^x within 2 units in the last place, for x in [kLeastExponent, 88]. Range reduction by ln 2 in
/// two parts (Cody and Waite) and the minimax polynomial of Cephes' expf.
inline Vec exponential_within(Vec x) {
  constexpr float kRounder = 0x1.8p23F;  // adding it leaves an integer in the low bits
  const Vec shifted = x * 1.44269504F + kRounder;
  const Vec n = shifted - kRounder;
  const Vec r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const auto power = (reinterpret_cast<WordVec>(shifted) + 127U) << 23;
  return p * reinterpret_cast<Vec>(power);
}

/// e^x for any x; 0 below kLeastExponent.
inline Vec exponential(Vec x) {
  const Vec least = splat(kLeastExponent);
  const IntVec underflow = x < least;
  const Vec clamped = select(x > splat(88.0F), splat(88.0F), select(underflow, least, x));
  return select(underflow, Vec{}, exponential_within(clamped));
}

/// tanh(x) within 3 units in the last place: near zero the minimax polynomial of Cephes' tanhf.
inline Vec hyperbolic_tangent(Vec x) {
  const Vec size = magnitude(x);
  const Vec far = 1.0F - 2.0F / (exponential(2.0F * size) + 1.0F);
  const Vec z = x * x;
  Vec p = z * -5.70498872745e-3F + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const Vec near = p * z * size + size;
  const auto sign = reinterpret_cast<WordVec>(x) & 0x80000000U;
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(select(size < 0.625F, near, far)) | sign);
}

/// log(1 + e^x) within 4 units in the last place, as the larger of x and 0 and 2 artanh(e / (2 +
/// e)) of e = e^-|x|, by its series.
inline Vec softplus(Vec x) {
  const Vec e = exponential(-magnitude(x));
  const Vec z = e / (2.0F + e);
  const Vec w = z * z;
  Vec p = w * (2.0F / 15) + 2.0F / 13;
  p = p * w + 2.0F / 11;
  p = p * w + 2.0F / 9;
  p = p * w + 2.0F / 7;
  p = p * w + 2.0F / 5;
  p = p * w + 2.0F / 3;
  return select(x > Vec{}, x, Vec{}) + z * (p * w + 2.0F);
}

// --- Rows of any length
// --------------------------------------------------------------------------------

/// Calls body(column, count) for the vectors of a row, count < kLanes for the last. Flattened, so
/// that the count of whole vectors is a constant.
template <class Body>
[[gnu::flatten]] inline void for_vectors(int64_t columns, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) body(c, int64_t{kLanes});
  if (c < columns) body(c, columns - c);
}

/// Zeros beyond `count`.
inline Vec load_up_to(const float* from, int64_t count) {
  return count == kLanes ? load(from) : widen_some(from, count);
}

inline void store_up_to(float* to, Vec v, int64_t count) {
  if (count == kLanes) {
    store(to, v);
  } else {
    store_some(to, v, count);
  }
}

#if defined(__AVX512F__)
/// Transposes a 16 x 16 matrix of 32-bit elements in place.
inline void transpose16(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {  // pairs of rows, 32-bit elements
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // fours of rows, 64-bit elements
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // 128-bit elements: rows[4 a + i] holds columns i, 4 + i, ...
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
#endif

#if defined(__AVX512F__)
inline void transpose(Vec (&rows)[kLanes]) {
  __m512i bits[kLanes];
  for (int i = 0; i < kLanes; ++i) bits[i] = reinterpret_cast<__m512i>(rows[i]);
  transpose16(bits);
  for (int i = 0; i < kLanes; ++i) rows[i] = reinterpret_cast<Vec>(bits[i]);
}
#elif defined(__AVX2__)
inline void transpose(Vec (&rows)[kLanes]) {
  Vec t[kLanes];
  for (int i = 0; i < 4; ++i) {  // rows i and 4 + i: halves of columns 0 to 3, and of 4 to 7
    t[i] = __builtin_shufflevector(rows[i], rows[4 + i], 0, 1, 2, 3, 8, 9, 10, 11);
    t[4 + i] = __builtin_shufflevector(rows[i], rows[4 + i], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < kLanes; i += 4) {
    const Vec low01 = __builtin_shufflevector(t[i], t[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    const Vec high01 = __builtin_shufflevector(t[i], t[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    const Vec low23 = __builtin_shufflevector(t[i + 2], t[i + 3], 0, 8, 1, 9, 4, 12, 5, 13);
    const Vec high23 = __builtin_shufflevector(t[i + 2], t[i + 3], 2, 10, 3, 11, 6, 14, 7, 15);
    rows[i] = __builtin_shufflevector(low01, low23, 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 1] = __builtin_shufflevector(low01, low23, 2, 3, 10, 11, 6, 7, 14, 15);
    rows[i + 2] = __builtin_shufflevector(high01, high23, 0, 1, 8, 9, 4, 5, 12, 13);
    rows[i + 3] = __builtin_shufflevector(high01, high23, 2, 3, 10, 11, 6, 7, 14, 15);
  }
}
#else
inline void transpose(Vec (&rows)[kLanes]) {
  const Vec low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Vec high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Vec low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Vec high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}
#endif

}  // namespace
}  // namespace faststream
