// Products of floats with many rows on AMX tiles of bfloat16. Everything is local to the including
// file.
//
// A float is exactly the sum of three bfloat16 numbers: eight bits of its significand each, by
// truncation. Of the nine products of two such sums the six largest are added, in float; what the
// others are is 2^-22 of the product at most, as much as the sum's own rounding. AMX has 16 times
// the rate of a processor's vectors of floats, so that six products take less than half the time.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/linear/amx_tiles.h"
#include "kernels/cpu/linear/tile_kernels.h"

namespace faststream {
namespace {

constexpr int kFloatParts = 3;
constexpr int64_t kFloatStep = 32;  // floats of a row that a step takes: a line of each part

/// Two vectors of floats as lines of their parts, the largest first.
struct FloatParts {
  __m512i line[kFloatParts];
};

inline FloatParts split_floats(__m512 low, __m512 high) {
  const __m512i upper_halves = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  alignas(64) static constexpr uint16_t kOddWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                         23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                         45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i odd_words = _mm512_load_si512(kOddWords);
  const auto words = [&] {
    return _mm512_permutex2var_epi16(_mm512_castps_si512(low), odd_words,
                                     _mm512_castps_si512(high));
  };
  const auto rest = [&](__m512 v) {
    const __m512i upper = _mm512_and_si512(_mm512_castps_si512(v), upper_halves);
    return _mm512_sub_ps(v, _mm512_castsi512_ps(upper));
  };
  FloatParts parts;
  for (int i = 0; i < kFloatParts; ++i) {
    parts.line[i] = words();
    low = rest(low);
    high = rest(high);
  }
  return parts;
}

/// A share of a range's weights, to [step][part][half][16 channels][64 bytes]: so many lines of
/// 32 floats from the first on, which are numbered [step][channel][half]; prefetches those `ahead`
/// bytes further.
inline void gather_float_lines(const TileSource& source, int64_t first, int64_t count,
                               int64_t ahead, char* to) {
  for (int64_t line = first; line < first + count; ++line) {
    const int64_t k = line / 32;
    const int64_t c = line % 32 / 2;
    const int64_t half = line % 2;
    const auto* channels = static_cast<const char*>(half == 0 ? source.first : source.second);
    const auto* from = channels + c * source.channel_bytes + k * kFloatStep * 4;
    const FloatParts parts = split_floats(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 64));
    if (ahead != 0) {
      _mm_prefetch(from + ahead, _MM_HINT_T1);
      _mm_prefetch(from + ahead + 64, _MM_HINT_T1);
    }
    char* tiles = to + (k * kFloatParts * 2 + half) * kTileBytes + c * 64;
    for (int i = 0; i < kFloatParts; ++i) {
      _mm512_store_si512(tiles + i * 2 * kTileBytes, parts.line[i]);
    }
  }
}

void gather_floats(const TileSource& source, void* to) {
  gather_float_lines(source, 0, source.tiles_k * 32, 0, static_cast<char*>(to));
}

/// To [steps][part][16][16 rows][4 bytes].
void pack_floats(const float* x, int64_t stride, int64_t rows, int64_t in, const PackedRows& to) {
  auto* tile = static_cast<char*>(to.packed);
  for (int64_t i = 0; i < in; i += kFloatStep, tile += kFloatParts * kTileBytes) {
    __m512i lines[kFloatParts][16];
    for (int64_t r = 0; r < 16; ++r) {
      const float* row = x + r * stride;
      const int64_t end = r < rows ? in : 0;
      const FloatParts parts = split_floats(load_row(row, i, end), load_row(row, i + 16, end));
      for (int p = 0; p < kFloatParts; ++p) lines[p][r] = parts.line[p];
    }
    for (int p = 0; p < kFloatParts; ++p) store_tile(lines[p], tile + p * kTileBytes);
  }
}

/// Tiles 4 and 5: a part of a step's weights.
template <int kPart>
inline void load_weight_part(const char* step) {
  _tile_loadd(4, step + kPart * 2 * kTileBytes, 64);
  _tile_loadd(5, step + (kPart * 2 + 1) * kTileBytes, 64);
}

/// Tiles 6 and 7: a part of two groups of rows.
template <int kPart>
inline void load_row_part(const char* left, const char* right) {
  _tile_loadd(6, left + kPart * kTileBytes, 64);
  _tile_loadd(7, right + kPart * kTileBytes, 64);
}

/// The six products of a step, in an order in which each needs but one new operand. between() is
/// called after each.
template <class Between>
inline void multiply_float_step(const char* weights, const char* left, const char* right,
                                const Between& between) {
  const auto multiply = [&between] {
    multiply_tiles<false>();
    between();
  };
  load_weight_part<0>(weights);
  load_row_part<2>(left, right);
  multiply();
  load_row_part<1>(left, right);
  multiply();
  load_weight_part<1>(weights);
  multiply();
  load_row_part<0>(left, right);
  multiply();
  load_weight_part<2>(weights);
  multiply();
  load_weight_part<0>(weights);
  multiply();
}

void multiply_floats(const TileTask& task) {
  const auto* weights = static_cast<const char*>(task.weights);
  const int64_t pairs = (task.groups + 1) / 2;
  // The next task's weights are gathered between the products of this one: vectors work while
  // tiles do.
  const int64_t lines = task.next.tiles_k * 32;
  const int64_t products = pairs * task.tiles_k * 6;
  const int64_t share = (lines + products - 1) / products;
  int64_t gathered = 0;
  const char* ahead_left = nullptr;
  const char* ahead_right = nullptr;
  const auto gather_some = [&] {
    for (int i = 0; i < 8; ++i, ahead_left += 64, ahead_right += 64) {
      _mm_prefetch(ahead_left, _MM_HINT_T0);
      _mm_prefetch(ahead_right, _MM_HINT_T0);
    }
    const int64_t count = share < lines - gathered ? share : lines - gathered;
    gather_float_lines(task.next, gathered, count, task.ahead,
                       static_cast<char*>(task.next_weights));
    gathered += count;
  };
  multiply_pairs<false>(task, [&](int64_t pair, const char* left, const char* right) {
    for (int64_t k = 0; k < task.tiles_k; ++k) {
      const int64_t of_rows = k * kFloatParts * kTileBytes;
      ahead_left = left + of_rows + kFloatParts * kTileBytes;
      ahead_right = right + of_rows + kFloatParts * kTileBytes;
      if (k + 1 == task.tiles_k && pair + 1 < pairs) {
        ahead_left = left + 2 * task.group_bytes;
        ahead_right = right + 2 * task.group_bytes;
      }
      multiply_float_step(weights + 2 * of_rows, left + of_rows, right + of_rows, gather_some);
    }
  });
}

TileKernels float_tiles() {
  return {.most_dot_rows = kMostFloatDotRows,
          .pack_dot = nullptr,
          .dot = nullptr,
          .step_inputs = kFloatStep,
          .step_tiles = kFloatParts,
          .pack = pack_floats,
          .gather = gather_floats,
          .multiply = multiply_floats};
}

}  // namespace
}  // namespace faststream
