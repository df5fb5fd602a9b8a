// Products with i8 weights in integers on vectors of 32 bytes: by the dot products of AVX-VNNI
// where the including file has them, else by those of AVX2. Everything is local to the including
// file.
//
// Lanes are inputs, of weights as they lie in the model file and of rows that are rounded to eight
// bits. Sums of integers are exact in any order, so that a row has the same bits whatever the
// number of rows, and the same as on tiles.
//
// Both instruction sets multiply unsigned bytes by signed ones. AVX-VNNI: the weights' sign bits
// are inverted, which adds 128 to each, and what that adds to a sum, 128 times the total of the
// row, is taken away at the end. AVX2 adds two products in 16 bits, saturated, which those would
// exceed: the weights' magnitudes, at most 128, are multiplied by inputs, at most 127 in magnitude,
// that are given the weights' signs; two such products are at most 32,512.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/linear/quantize_kernel.h"

namespace faststream {
namespace {

/// Weights as the products want them.
inline __m256i unsigned_weights(__m256i weights) {
#if defined(__AVXVNNI__)
  return _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
#else
  return _mm256_abs_epi8(weights);
#endif
}

/// sums + weights · x of four bytes in each lane; `bytes` are unsigned_weights(weights).
inline __m256i add_products(__m256i sums, __m256i weights, __m256i bytes, __m256i x) {
#if defined(__AVXVNNI__)
  static_cast<void>(weights);
  return _mm256_dpbusd_avx_epi32(sums, bytes, x);
#else
  const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_sign_epi8(x, weights));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

/// The totals of the lanes of four vectors.
inline __m128i totals_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

/// Adds the products of C channels and R rows, of which 32 inputs are so many bytes apart.
template <int R, int C>
inline void add_inputs(const int8_t* weights, int64_t channel_bytes, const int8_t* x,
                       int64_t row_bytes, __m256i (&sums)[C][R]) {
  for (int c = 0; c < C; ++c) {
    const auto w = load_raw<__m256i>(weights + c * channel_bytes);
    const __m256i bytes = unsigned_weights(w);
    for (int r = 0; r < R; ++r) {
      sums[c][r] = add_products(sums[c][r], w, bytes, load_raw<__m256i>(x + r * row_bytes));
    }
  }
}

/// C channels, 4 or 1, times R rows from `row` on. Beside a line of the channels whose bits are set
/// in `prefetched`, that of the channel four further is prefetched.
template <int R, int C>
inline void integer_block(const DotTask& task, const int8_t* weights, int64_t row,
                          uint32_t prefetched, float* results) {
  const int64_t in = task.in;
  const int64_t row_bytes = packed_int8_bytes(in);
  const int8_t* x = static_cast<const int8_t*>(task.packed) + row * row_bytes;
  constexpr int kParts = C == 1 ? 2 : 1;  // of a sum: additions to one wait for each other
  __m256i parts[kParts][C][R] = {};
  auto& sums = parts[0];
  int64_t k = 0;
  for (; k + 64 <= in; k += 64) {
    for (int c = 0; c < C; ++c) {
      if ((prefetched >> c & 1) != 0) __builtin_prefetch(weights + (c + 4) * in + k);
    }
    add_inputs<R, C>(weights + k, in, x + k, row_bytes, sums);
    add_inputs<R, C>(weights + k + 32, in, x + k + 32, row_bytes, parts[kParts - 1]);
  }
  for (; k < in; k += 32) {
    const int64_t count = in - k < 32 ? in - k : 32;
    int8_t part[C * 32] = {};
    for (int c = 0; c < C; ++c) {
      __builtin_memcpy(part + c * 32, weights + c * in + k, static_cast<size_t>(count));
    }
    add_inputs<R, C>(part, 32, x + k, row_bytes, sums);
  }
  for (int r = 0; kParts > 1 && r < R; ++r) {
    sums[0][r] = _mm256_add_epi32(sums[0][r], parts[kParts - 1][0][r]);
  }
// Else GCC 12 keeps a copy of the sums in memory, which costs 15% with AVX-VNNI.
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    __m128i totals = totals_of(sums[0][r], sums[1 % C][r], sums[2 % C][r], sums[3 % C][r]);
#if defined(__AVXVNNI__)
    const __m128i row_total = _mm_set1_epi32(task.row_totals[row + r]);
    totals = _mm_sub_epi32(totals, _mm_slli_epi32(row_total, 7));
#endif
    const __m128 v = _mm_mul_ps(_mm_cvtepi32_ps(totals), _mm_set1_ps(task.row_scales[row + r]));
    __builtin_memcpy(results + (row + r) * task.sums_stride, &v, C * sizeof(float));
  }
}

/// The rows from `row` on, at most R and `count`.
template <int R, int C>
inline void integer_rows(const DotTask& task, const int8_t* weights, int64_t row, int64_t count,
                         uint32_t prefetched, float* sums) {
  if constexpr (R > 1) {
    if (count < R) return integer_rows<R - 1, C>(task, weights, row, count, prefetched, sums);
  }
  integer_block<R, C>(task, weights, row, prefetched, sums);
}

// Rows of a pass: three were slower by 5% to 10% with AVX-VNNI, and no faster without.
constexpr int kIntegerRows = 2;
// Of rows: half a small second-level cache.
constexpr int64_t kChunkBytes = int64_t{128} << 10;

/// C channels, 4 or 1, times rows [begin, end): the first passes prefetch the next channels.
template <int C>
inline void integer_channels(const DotTask& task, int64_t channel, int64_t begin, int64_t end) {
  const auto* weights = static_cast<const int8_t*>(task.weights) + channel * task.in;
  const int64_t passes = (end - begin + kIntegerRows - 1) / kIntegerRows;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = begin + pass * kIntegerRows;
    uint32_t prefetched = 0;
    for (int c = 0; c < 4; ++c) {
      if (c % passes == pass) prefetched |= 1U << c;
    }
    integer_rows<kIntegerRows, C>(task, weights, row, end - row, prefetched, task.sums + channel);
  }
}

/// Channels stay in the first-level cache while a chunk of rows, which the second-level cache
/// holds, passes over them. Beside the rows of one pass they are read one after the other: one
/// stream is read at memory's full speed, which four are not (a Zen 4 core: 31 and 14 GB/s).
void integer_dot(const DotTask& task) {
  const int64_t fit = kChunkBytes / packed_int8_bytes(task.in) / kIntegerRows * kIntegerRows;
  const int64_t chunk = fit > kIntegerRows ? fit : kIntegerRows;
  for (int64_t begin = 0; begin < task.rows; begin += chunk) {
    const int64_t end = begin + chunk < task.rows ? begin + chunk : task.rows;
    int64_t c = 0;
    for (; task.rows > kIntegerRows && c + 4 <= task.channels; c += 4) {
      integer_channels<4>(task, c, begin, end);
    }
    for (; c < task.channels; ++c) integer_channels<1>(task, c, begin, end);
  }
}

void pack_integers(const float* x, int64_t stride, int64_t rows, int64_t in, const PackedRows& to) {
  const int64_t bytes = packed_int8_bytes(in);
  for (int64_t r = 0; r < rows; ++r) {
    int8_t* row = static_cast<int8_t*>(to.packed) + r * bytes;
    to.scales[r] = quantize_i8(x + r * stride, in, row);
    __builtin_memset(row + in, 0, static_cast<size_t>(bytes - in));
    __m256i sums = _mm256_setzero_si256();
    for (int64_t k = 0; k < bytes; k += 32) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_raw<__m256i>(row + k));
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    to.totals[r] = _mm_cvtsi128_si32(totals_of(sums, sums, sums, sums));
  }
}

inline TileKernels integer_tiles() {
  return {.most_dot_rows = kAnyRows,
          .pack_dot = pack_integers,
          .dot = integer_dot,
          .pack = nullptr,
          .gather = nullptr,
          .multiply = nullptr};
}

}  // namespace
}  // namespace faststream
