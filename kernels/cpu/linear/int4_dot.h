// Few rows times int4 weights (support/weight_format.h), as they lie in the model file: by the dot
// products of AVX-512 VNNI or AVX-VNNI where the including file has them, else by those of AVX2.
// Everything is local to the including file.
//
// What a group of columns adds to a sum is step · Σ q x - offset · Σ x. The q are unsigned and
// small: of eight columns they add at most 8 · 15 · 127 in magnitude, which 16 bits hold, so that a
// multiply-add of 16 bits multiplies by the step. The Σ x are made when a row is packed. All of it
// is integers, so that results have the bits that i8 weights of the same values give.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/linear/quantize_kernel.h"
#include "support/weight_format.h"

namespace faststream {
namespace {

#if defined(__AVX512VNNI__)
using Int4Vec = __m512i;
#else
using Int4Vec = __m256i;
#endif

constexpr int64_t kInt4Width = sizeof(Int4Vec);           // bytes of q at once,
constexpr int64_t kInt4Chunk = 2 * kInt4Width;            // which are so many columns,
constexpr int64_t kInt4Chunks = kInt4Block / kInt4Chunk;  // parts of a block
constexpr int64_t kInt4Groups = kInt4Block / kInt4Group;  // of a block
static_assert(kInt4Groups == 16 && kInt4CodeBytes == 16 && 2 * kInt4GroupBytes == kInt4Group);

/// Rows whose sums are made at once.
constexpr int kInt4Rows = kInt4Width == 64 ? 8 : 4;
/// Weights are prefetched so many bytes ahead: half of it is slower by a quarter, as is none.
constexpr int64_t kInt4Ahead = 8192;

// --- Vectors
// --------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
inline __m512i halves(__m512i q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }
inline __m512i high_halves(__m512i q) { return halves(_mm512_srli_epi16(q, 4)); }

/// The steps of a chunk's groups, from the codes of a block, in all lanes of theirs.
inline __m512i steps_of(__m128i codes, int64_t chunk) {
  const auto first = static_cast<int>(4 * chunk);  // the bytes above it become zero
  const __m512i of_groups = _mm512_set_epi32(first + 3, first + 3, first + 3, first + 3, first + 2,
                                             first + 2, first + 2, first + 2, first + 1, first + 1,
                                             first + 1, first + 1, first, first, first, first);
  const __m512i index = _mm512_or_si512(of_groups, _mm512_set1_epi32(static_cast<int>(0x80808000)));
  return _mm512_shuffle_epi8(halves(_mm512_broadcast_i32x4(codes)), index);
}

/// sums + steps · (low · x_low + high · x_high), of eight columns in each lane.
inline __m512i add_chunk(__m512i sums, __m512i low, __m512i high, const int8_t* x, __m512i steps) {
  const auto x_low = load_raw<__m512i>(x);
  const auto x_high = load_raw<__m512i>(x + kInt4Width);
  const __m512i of_low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, x_low);
  return _mm512_dpwssd_epi32(sums, _mm512_dpbusd_epi32(of_low, high, x_high), steps);
}

inline __m512i subtract(__m512i sums, __m256i some) {
  return _mm512_sub_epi32(sums, _mm512_zextsi256_si512(some));
}
inline __m512i add(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline int32_t total_of(__m512i sums) { return _mm512_reduce_add_epi32(sums); }
#else
inline __m256i halves(__m256i q) { return _mm256_and_si256(q, _mm256_set1_epi8(15)); }
inline __m256i high_halves(__m256i q) { return halves(_mm256_srli_epi16(q, 4)); }

/// The steps of a chunk's groups, from the codes of a block, in all lanes of theirs.
inline __m256i steps_of(__m128i codes, int64_t chunk) {
  const auto first = static_cast<int>(2 * chunk);
  const __m128i of_first = _mm_set1_epi32(first);
  const __m256i of_groups =
      _mm256_inserti128_si256(_mm256_castsi128_si256(of_first), _mm_set1_epi32(first + 1), 1);
#if defined(__AVXVNNI__)
  constexpr uint32_t kZeros = 0x80808000;  // lanes are of 32 bits
  const __m256i places = of_groups;
#else
  constexpr uint32_t kZeros = 0x80008000;  // of 16 bits
  const __m256i places = _mm256_or_si256(of_groups, _mm256_slli_epi32(of_groups, 16));
#endif
  const __m256i index = _mm256_or_si256(places, _mm256_set1_epi32(static_cast<int>(kZeros)));
  return _mm256_shuffle_epi8(halves(_mm256_broadcastsi128_si256(codes)), index);
}

/// sums + steps · (low · x_low + high · x_high), of eight columns in each lane.
inline __m256i add_chunk(__m256i sums, __m256i low, __m256i high, const int8_t* x, __m256i steps) {
  const auto x_low = load_raw<__m256i>(x);
  const auto x_high = load_raw<__m256i>(x + kInt4Width);
#if defined(__AVXVNNI__)
  const __m256i of_low = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), low, x_low);
  return _mm256_dpwssd_avx_epi32(sums, _mm256_dpbusd_avx_epi32(of_low, high, x_high), steps);
#else
  const __m256i both =
      _mm256_add_epi16(_mm256_maddubs_epi16(low, x_low), _mm256_maddubs_epi16(high, x_high));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(both, steps));
#endif
}

inline __m256i subtract(__m256i sums, __m256i some) { return _mm256_sub_epi32(sums, some); }
inline __m256i add(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
inline int32_t total_of(__m256i sums) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
}
#endif

/// Int4Levels::offset of a block's groups, as 16-bit integers.
inline __m256i offsets_of(__m128i codes) {
  const __m256i wide = _mm256_cvtepu8_epi16(codes);
  const __m256i step = _mm256_and_si256(wide, _mm256_set1_epi16(15));
  const __m256i high = _mm256_srli_epi16(wide, 4);
  const __m256i offset =
      _mm256_srli_epi16(_mm256_mullo_epi16(step, _mm256_add_epi16(high, _mm256_set1_epi16(8))), 1);
  const __m256i least =
      _mm256_sub_epi16(_mm256_sub_epi16(_mm256_slli_epi16(step, 4), step), _mm256_set1_epi16(127));
  return _mm256_min_epi16(_mm256_max_epi16(offset, least), _mm256_set1_epi16(127));
}

// --- Products
// -------------------------------------------------------------------------------------------

/// A row of x: its blocks, each in chunks of the columns that are low halves, then of those that
/// are high ones; then the sums of all groups.
constexpr int64_t int4_blocks(int64_t in) { return (in + kInt4Block - 1) / kInt4Block; }

constexpr int kInt4Parts = 2;  // of the sum of a single row: additions to one wait for each other

/// Adds the products of a block of a channel and R rows, which are `row_bytes` apart.
template <int R>
inline void add_block(const char* weights, const int8_t* x, const int16_t* x_sums,
                      int64_t row_bytes, Int4Vec (&sums)[kInt4Parts][R]) {
  const auto codes = load_raw<__m128i>(weights);
  const __m256i offsets = offsets_of(codes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto of_groups = load_raw<__m256i>(x_sums + r * (row_bytes / 2));
    sums[0][r] = subtract(sums[0][r], _mm256_madd_epi16(offsets, of_groups));
  }
#pragma GCC unroll 8
  for (int64_t chunk = 0; chunk < kInt4Chunks; ++chunk) {
    auto q = load_raw<Int4Vec>(weights + kInt4CodeBytes + chunk * kInt4Width);
    asm("" : "+v"(q));  // else it is loaded for each half, mostly from two lines: 15% slower
    const Int4Vec low = halves(q);
    const Int4Vec high = high_halves(q);
    const Int4Vec steps = steps_of(codes, chunk);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      auto& sum = sums[R == 1 ? chunk % kInt4Parts : 0][r];
      sum = add_chunk(sum, low, high, x + r * row_bytes + chunk * kInt4Chunk, steps);
    }
  }
}

/// One channel times R rows from `row` on.
template <int R>
inline void int4_channel(const DotTask& task, const char* weights, int64_t row, float* results) {
  const int64_t blocks = int4_blocks(task.in);
  const int64_t row_bytes = packed_int4_bytes(task.in);
  const int8_t* x = static_cast<const int8_t*>(task.packed) + row * row_bytes;
  const auto* x_sums =
      static_cast<const int16_t*>(static_cast<const void*>(x + blocks * kInt4Block));
  Int4Vec sums[kInt4Parts][R] = {};
  const int64_t whole = task.in / kInt4Block;
  for (int64_t b = 0; b < whole; ++b) {
    const char* block = weights + b * kInt4BlockBytes;
    for (int64_t line = 0; row == 0 && line < kInt4BlockBytes; line += 64) {
      __builtin_prefetch(block + kInt4Ahead + line, 0, 2);
    }
    add_block<R>(block, x + b * kInt4Block, x_sums + b * kInt4Groups, row_bytes, sums);
  }
  if (whole < blocks) {
    char block[kInt4BlockBytes] = {};
    const int64_t groups = (task.in - whole * kInt4Block + kInt4Group - 1) / kInt4Group;
    __builtin_memcpy(block, weights + whole * kInt4BlockBytes,
                     static_cast<size_t>(kInt4CodeBytes + groups * kInt4GroupBytes));
    add_block<R>(block, x + whole * kInt4Block, x_sums + whole * kInt4Groups, row_bytes, sums);
  }
  for (int r = 0; r < R; ++r) {
    const Int4Vec sum = R == 1 ? add(sums[0][r], sums[1][r]) : sums[0][r];
    results[(row + r) * task.sums_stride] =
        static_cast<float>(total_of(sum)) * task.row_scales[row + r];
  }
}

/// The rows from `row` on, at most R and `count`.
template <int R>
inline void int4_rows(const DotTask& task, const char* weights, int64_t row, int64_t count,
                      float* results) {
  if constexpr (R > 1) {
    if (count < R) return int4_rows<R - 1>(task, weights, row, count, results);
  }
  int4_channel<R>(task, weights, row, results);
}

/// Channels are read one after the other, in a stream: that of one stays in the first-level cache
/// while all rows pass over it.
void int4_dot(const DotTask& task) {
  const int64_t groups = (task.in + kInt4Group - 1) / kInt4Group;
  const int64_t channel_bytes = int4_blocks(task.in) * kInt4CodeBytes + groups * kInt4GroupBytes;
  const auto* weights = static_cast<const char*>(task.weights);
  for (int64_t c = 0; c < task.channels; ++c, weights += channel_bytes) {
    for (int64_t row = 0; row < task.rows; row += kInt4Rows) {
      int4_rows<kInt4Rows>(task, weights, row, task.rows - row, task.sums + c);
    }
  }
}

void pack_int4(const float* x, int64_t stride, int64_t rows, int64_t in, const PackedRows& to) {
  const int64_t row_bytes = packed_int4_bytes(in);
  const int64_t columns = int4_blocks(in) * kInt4Block;
  for (int64_t r = 0; r < rows; ++r) {
    int8_t* row = static_cast<int8_t*>(to.packed) + r * row_bytes;
    to.scales[r] = quantize_i8(x + r * stride, in, row);
    __builtin_memset(row + in, 0, static_cast<size_t>(columns - in));
    for (int64_t chunk = 0; chunk < columns; chunk += kInt4Chunk) {
      int8_t in_order[kInt4Chunk];
      __builtin_memcpy(in_order, row + chunk, sizeof in_order);
      for (int64_t at = 0; at < kInt4Chunk; at += kInt4Group) {
        int32_t sum = 0;
        for (int64_t i = 0; i < kInt4Group; ++i) sum += in_order[at + i];
        const auto narrow = static_cast<int16_t>(sum);
        __builtin_memcpy(row + columns + (chunk + at) / kInt4Group * 2, &narrow, sizeof narrow);
        int8_t* low = row + chunk + at / 2;
        __builtin_memcpy(low, in_order + at, kInt4GroupBytes);
        __builtin_memcpy(low + kInt4Width, in_order + at + kInt4GroupBytes, kInt4GroupBytes);
      }
    }
  }
}

/// For few rows alone.
inline TileKernels int4_dots() {
  return {.most_dot_rows = kMostInt4DotRows,
          .pack_dot = pack_int4,
          .dot = int4_dot,
          .pack = nullptr,
          .gather = nullptr,
          .multiply = nullptr};
}

}  // namespace
}  // namespace faststream
