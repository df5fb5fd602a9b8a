// What products on tiles share, whether AMX or vectors multiply them: rows of x are packed, weights
// gathered and results stored alike. Everything is local to the including file, which has AVX-512
// and, for bf16, AVX512-BF16.
//
// A tile of weights is 16 channels x 64 bytes as they lie in the model file, so nothing of the
// model is packed. The activations, which are small, are packed once for each product: a tile
// holds, for 16 rows, 64 bytes of the inner dimension, four bytes of each row beside each other
// ("VNNI").
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/linear/int4_levels.h"

namespace faststream {
namespace {

template <class Vector>
inline __m512i as_bits(const Vector& v) {
  return load_raw<__m512i>(&v);
}

/// sums [16 rows, 16 channels] = the transpose of a tile [16 channels, 16 rows].
template <bool kInt8>
inline void store_transposed(const int32_t* tile, const float* row_scales, float* sums,
                             int64_t stride) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = _mm512_load_si512(tile + i * 16);
  }
  transpose16(rows);
  for (int i = 0; i < 16; ++i) {
    const __m512 v = kInt8
                         ? _mm512_mul_ps(_mm512_cvtepi32_ps(rows[i]), _mm512_set1_ps(row_scales[i]))
                         : _mm512_castsi512_ps(rows[i]);
    _mm512_storeu_ps(sums + i * stride, v);
  }
}

/// Writes the results of a pair of row groups: tiles of [16 channels, 16 rows], 0 and 1 of the
/// first 16 channels, 2 and 3 of the second, each of the pair's first and second group.
template <bool kInt8>
inline void store_results(const TileTask& task, int64_t pair) {
  const int32_t* tiles = task.partial + pair * 1024;
  const int64_t stride = task.sums_stride;
  float* sums = task.sums + pair * 32 * stride;
  float* second_sums = sums + task.second_column;
  const float* scales = task.row_scales + pair * 32;
  store_transposed<kInt8>(tiles, scales, sums, stride);
  store_transposed<kInt8>(tiles + 512, scales, second_sums, stride);
  if (2 * pair + 1 < task.groups) {
    store_transposed<kInt8>(tiles + 256, scales + 16, sums + 16 * stride, stride);
    store_transposed<kInt8>(tiles + 768, scales + 16, second_sums + 16 * stride, stride);
  }
}

/// What weights become in a tile: what they are, eight bits with inverted signs, or bf16 that eight
/// bits are widened to (exactly); or the eight bits that four choose, with inverted signs or not.
enum class Gathered { same, flipped, widened, chosen, chosen_flipped };

template <Gathered kGathered>
constexpr bool kIsChosen = kGathered == Gathered::chosen || kGathered == Gathered::chosen_flipped;

/// Bytes of a channel that become a line of a tile.
template <Gathered kGathered>
constexpr int64_t kLineBytes = kGathered == Gathered::widened || kIsChosen<kGathered> ? 32 : 64;

/// Line k of a range of a channel that begins at `channel`.
template <Gathered kGathered>
inline __m512i gather_line(const char* channel, int64_t k) {
  const char* from = channel + k * kLineBytes<kGathered>;
  if constexpr (kIsChosen<kGathered>) {
    const __m512i line = int4_line(channel, k);
    return kGathered == Gathered::chosen ? line : _mm512_xor_si512(line, _mm512_set1_epi8(-128));
  } else if constexpr (kGathered == Gathered::widened) {
    const auto widen = [](const char* bytes) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_raw<__m128i>(bytes)));
    };
    return as_bits(_mm512_cvtne2ps_pbh(widen(from + 16), widen(from)));
  } else if constexpr (kGathered == Gathered::flipped) {
    return _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128));
  } else {
    return _mm512_loadu_si512(from);
  }
}

/// Gathers tile k of channels [begin, end) of both halves.
template <Gathered kGathered>
inline void gather_lines(const TileSource& source, int64_t k, int64_t begin, int64_t end,
                         char* to) {
  const auto* first = static_cast<const char*>(source.first);
  const auto* second = static_cast<const char*>(source.second);
  char* tile = to + k * 2 * kTileBytes;
  for (int64_t c = begin; c < end; ++c) {
    _mm512_store_si512(tile + c * 64, gather_line<kGathered>(first + c * source.channel_bytes, k));
    _mm512_store_si512(tile + kTileBytes + c * 64,
                       gather_line<kGathered>(second + c * source.channel_bytes, k));
  }
}

/// All channels of all tiles.
template <Gathered kGathered>
void gather_tiles(const TileSource& source, void* to) {
  for (int64_t k = 0; k < source.tiles_k; ++k) {
    gather_lines<kGathered>(source, k, 0, 16, static_cast<char*>(to));
  }
}

/// A share of a range that is gathered while the one before is multiplied: channels [begin, end)
/// of tile k. Prefetches what is `ahead` bytes further.
template <Gathered kGathered>
inline void gather_ahead(const TileSource& source, int64_t k, int64_t begin, int64_t end,
                         int64_t ahead, char* to) {
  gather_lines<kGathered>(source, k, begin, end, to);
  if (ahead == 0) return;
  const int64_t at = ahead + k * kLineBytes<kGathered>;
  const auto* first = static_cast<const char*>(source.first) + at;
  const auto* second = static_cast<const char*>(source.second) + at;
  for (int64_t c = begin; c < end; ++c) {
    _mm_prefetch(first + c * source.channel_bytes, _MM_HINT_T1);
    _mm_prefetch(second + c * source.channel_bytes, _MM_HINT_T1);
  }
}

/// Element i of a row as a vector with the elements past `in` zero.
inline __m512 load_row(const float* x, int64_t i, int64_t in) {
  if (i + 16 <= in) return _mm512_loadu_ps(x + i);
  if (i >= in) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << (in - i)) - 1), x + i);
}

inline void store_tile(__m512i (&rows)[16], void* packed) {
  transpose16(rows);
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_si512(static_cast<char*>(packed) + i * 64, rows[i]);
  }
}

/// What a row of x is multiplied with to become eight bits, max|x| to 127; `scale` is undone later.
__m512 inverse_scale(const float* x, int64_t in, float& scale) {
  __m512 largest = _mm512_setzero_ps();
  for (int64_t i = 0; i < in; i += 16) {
    largest = _mm512_max_ps(largest, _mm512_abs_ps(load_row(x, i, in)));
  }
  const float top = _mm512_reduce_max_ps(largest);
  scale = top / 127.0F;
  return _mm512_set1_ps(top > 0 ? 127.0F / top : 0.0F);
}

/// 64 bytes of a row of x, from byte 64 k on: eight-bit integers, or bf16.
template <bool kInt8>
__m512i load_narrow(const float* x, int64_t k, int64_t in, __m512 inverse) {
  if constexpr (kInt8) {
    __m128i quarter[4];
    for (int64_t j = 0; j < 4; ++j) {
      // As quantize_i8() rounds: the same bytes whatever the number of rows.
      const __m512 v = load_row(x, k * 64 + j * 16, in);
      quarter[j] = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
    }
    const __m256i low = _mm256_set_m128i(quarter[1], quarter[0]);
    const __m256i high = _mm256_set_m128i(quarter[3], quarter[2]);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  } else {
    return as_bits(_mm512_cvtne2ps_pbh(load_row(x, k * 32 + 16, in), load_row(x, k * 32, in)));
  }
}

template <bool kInt8>
constexpr int64_t kTileInputs = kInt8 ? 64 : 32;

/// Adds the eight-bit integers of a line to the sums of its lanes.
inline __m512i add_bytes(__m512i sums, __m512i line) {
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), line);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

template <bool kInt8>
void pack_tiles(const float* x, int64_t stride, int64_t rows, int64_t in, const PackedRows& to) {
  __m512 inverse[16];
  __m512i sums[16];
  for (int64_t r = 0; kInt8 && r < 16; ++r) {
    inverse[r] = inverse_scale(x + r * stride, r < rows ? in : 0, to.scales[r]);
    sums[r] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k * kTileInputs<kInt8> < in; ++k) {
    __m512i tile[16];
    for (int64_t r = 0; r < 16; ++r) {
      tile[r] =
          r < rows ? load_narrow<kInt8>(x + r * stride, k, in, inverse[r]) : _mm512_setzero_si512();
    }
    for (int64_t r = 0; kInt8 && r < 16; ++r) {
      sums[r] = add_bytes(sums[r], tile[r]);
    }
    store_tile(tile, static_cast<char*>(to.packed) + k * kTileBytes);
  }
  for (int64_t r = 0; kInt8 && r < 16; ++r) {
    to.totals[r] = _mm512_reduce_add_epi32(sums[r]);
  }
}

template <bool kInt8>
void pack_narrow_tiles(const float* x, int64_t stride, int64_t rows, int64_t in,
                       const PackedRows& packed) {
  auto* quads = static_cast<uint32_t*>(packed.packed);
  const int64_t tiles_k = (in + kTileInputs<kInt8> - 1) / kTileInputs<kInt8>;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = r / 16 * 16;  // of the group
    const int64_t width = rows - begin < 16 ? rows - begin : 16;
    uint32_t* to = quads + begin * tiles_k * 16 + r % 16;
    __m512 inverse = _mm512_setzero_ps();
    if (kInt8) inverse = inverse_scale(x + r * stride, in, packed.scales[r]);
    __m512i sums = _mm512_setzero_si512();
    for (int64_t k = 0; k < tiles_k; ++k) {
      alignas(64) uint32_t row[16];
      const __m512i line = load_narrow<kInt8>(x + r * stride, k, in, inverse);
      if (kInt8) sums = add_bytes(sums, line);
      _mm512_store_si512(row, line);
      for (int64_t i = 0; i < 16; ++i) to[(k * 16 + i) * width] = row[i];
    }
    if (kInt8) packed.totals[r] = _mm512_reduce_add_epi32(sums);
  }
}

/// A tile of weights at the end of a row or of the channels, where there is less: zeros beyond.
void copy_part(const char* from, int64_t channel_bytes, int64_t channels, int64_t bytes, char* to) {
  __builtin_memset(to, 0, kTileBytes);
  for (int64_t c = 0; c < channels; ++c) {
    __builtin_memcpy(to + c * 64, from + c * channel_bytes, static_cast<size_t>(bytes));
  }
}

/// How far from byte `at` of a group of channels, which are read beside each other, to prefetch: so
/// that the ends of channels prefetch the beginnings of the next group's, of which the processor's
/// own prefetching knows nothing.
inline int64_t prefetch_distance(int64_t at, int64_t channel_bytes, int64_t group) {
  constexpr int64_t kDistance = 1024;
  return kDistance + (at + kDistance < channel_bytes ? 0 : (group - 1) * channel_bytes);
}

}  // namespace
}  // namespace faststream
