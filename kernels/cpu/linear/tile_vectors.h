// Products on tiles by the dot products of AVX-512: VNNI for i8, BF16 for bf16. Lanes are rows of x
// where there are many, channels where there are few; either way a sum adds the inner dimension
// four bytes after the other, so that both have the same bits. i8 sums are exact in any order: with
// few rows lanes are inputs.
//
// VNNI multiplies unsigned bytes by signed ones: the weights' sign bits are inverted, which adds
// 128 to each, and what that adds to a sum, 128 times the total of the row of x, is taken away at
// the start.
#pragma once

#include "kernels/cpu/linear/tile_kernels.h"

namespace faststream {
namespace {

/// Bits of the weights to invert.
template <bool kInt8>
inline __m512i flipped_bits() {
  return kInt8 ? _mm512_set1_epi8(-128) : _mm512_setzero_si512();
}

/// sums + weights · x of four bytes in each lane.
template <bool kInt8>
inline __m512i add_products(__m512i sums, __m512i weights, __m512i x) {
  if constexpr (kInt8) {
    return _mm512_dpbusd_epi32(sums, weights, x);
  } else {
    __m512bh w;
    __m512bh v;
    __builtin_memcpy(&w, &weights, sizeof w);
    __builtin_memcpy(&v, &x, sizeof v);
    return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sums), w, v));
  }
}

// --- Many rows
// ------------------------------------------------------------------------------------------

/// Gathers the next task's weights in even steps, between a task's tiles, so that the processor
/// multiplies while it waits for their lines.
template <Gathered kGathered>
class Gathering {
 public:
  Gathering(const TileTask& task, int64_t steps)
      : task_(task), lines_(16 * task.next.tiles_k), share_((lines_ + steps - 1) / steps) {}

  void step() {
    for (const int64_t end = at_ + share_; at_ < end && at_ < lines_; ++at_) {
      gather_ahead<kGathered>(task_.next, k_, channel_, channel_ + 1, task_.ahead,
                              static_cast<char*>(task_.next_weights));
      if (++k_ == task_.next.tiles_k) {
        k_ = 0;
        ++channel_;
      }
    }
  }

 private:
  const TileTask& task_;
  int64_t lines_;  // of each half
  int64_t share_;  // lines of a step
  int64_t at_ = 0;
  int64_t channel_ = 0;
  int64_t k_ = 0;
};

/// Eight channels from `weights` on, in all tiles of the task, with G groups of 16 rows. The sums
/// of a channel are 16 elements, those of the second group 256 further.
template <bool kInt8, int G, Gathered kGathered>
inline void multiply_channels(const char* weights, int64_t tiles_k, const char* packed,
                              int64_t group_bytes, int32_t* tiles,
                              Gathering<kGathered>& gathering) {
  constexpr int kChannels = 8;
  __m512i sums[kChannels][G];
  for (int c = 0; c < kChannels; ++c) {
    for (int g = 0; g < G; ++g) {
      sums[c][g] = _mm512_load_si512(tiles + c * 16 + g * 256);
    }
  }
  for (int64_t k = 0; k < tiles_k; ++k) {
    const char* w = weights + k * 2 * kTileBytes;
    const char* x = packed + k * kTileBytes;
    for (int64_t i = 0; i < 64; i += 4) {
      __m512i rows[G];
      for (int g = 0; g < G; ++g) {
        rows[g] = _mm512_loadu_si512(x + g * group_bytes + i * 16);
      }
      for (int c = 0; c < kChannels; ++c) {
        const __m512i four = _mm512_set1_epi32(load_raw<int32_t>(w + c * 64 + i));
        for (int g = 0; g < G; ++g) {
          sums[c][g] = add_products<kInt8>(sums[c][g], four, rows[g]);
        }
      }
    }
    gathering.step();
  }
  for (int c = 0; c < kChannels; ++c) {
    for (int g = 0; g < G; ++g) {
      _mm512_store_si512(tiles + c * 16 + g * 256, sums[c][g]);
    }
  }
}

/// What a group of 16 rows starts from, in all channels of a tile.
template <bool kInt8>
inline void start_sums(const int32_t* totals, int32_t* tile) {
  __m512i start = _mm512_setzero_si512();
  if (kInt8) start = _mm512_slli_epi32(_mm512_loadu_si512(totals), 7);
  start = _mm512_sub_epi32(_mm512_setzero_si512(), start);
  for (int c = 0; c < 16; ++c) {
    _mm512_store_si512(tile + c * 16, start);
  }
}

template <bool kInt8, Gathered kGathered>
void multiply_vectors(const TileTask& task) {
  const auto* weights = static_cast<const char*>(task.weights);
  const auto* packed = static_cast<const char*>(task.packed);
  const int64_t pairs = (task.groups + 1) / 2;
  Gathering<kGathered> gathering(task, pairs * 4 * task.tiles_k);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const char* rows = packed + 2 * pair * task.group_bytes;
    const bool is_whole = 2 * pair + 1 < task.groups;
    int32_t* tiles = task.partial + pair * 1024;
    if (task.is_first) {
      for (int64_t tile = 0; tile < 4; ++tile) {
        if (tile % 2 == 1 && !is_whole) continue;
        start_sums<kInt8>(task.row_totals + pair * 32 + tile % 2 * 16, tiles + tile * 256);
      }
    }
    for (int64_t c = 0; c < 32; c += 8) {
      const char* channels = weights + c / 16 * kTileBytes + c % 16 * 64;
      int32_t* sums = tiles + c / 16 * 512 + c % 16 * 16;
      if (is_whole) {
        multiply_channels<kInt8, 2>(channels, task.tiles_k, rows, task.group_bytes, sums,
                                    gathering);
      } else {
        multiply_channels<kInt8, 1>(channels, task.tiles_k, rows, task.group_bytes, sums,
                                    gathering);
      }
    }
    if (task.is_last) store_results<kInt8>(task, pair);
  }
}

// --- Few rows
// -------------------------------------------------------------------------------------------

constexpr int kMostVectorRows = 16;  // whose sums stay in registers

// Memory is read at its full speed in one stream (a Zen 4 core 31 GB/s), but at half of it in 16,
// which channels as lanes need. So the next 16 are prefetched one after the other, where the
// second-level cache holds so many bytes twice.
constexpr int64_t kMostStreamedBytes = int64_t{256} << 10;
// Where lanes are inputs, as sums of integers allow, so many bytes are prefetched.
constexpr int64_t kStreamedAhead = 4096;

/// The totals of the lanes of four vectors.
inline __m128i totals_of(const __m512i (&v)[4]) {
  const auto add_pairs = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i first = add_pairs(v[0], v[1]);
  const __m512i second = add_pairs(v[2], v[3]);
  const __m512i fours =
      _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  const __m256i halves =
      _mm256_add_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

/// Four channels times R rows from `row` on, so that what is loaded of a row is multiplied four
/// times. What follows the channels is prefetched as one stream, if it `prefetches`.
template <int R>
inline void multiply_four_channels(const DotTask& task, const char* weights, int row,
                                   bool prefetches, float* sums) {
  constexpr int kChannels = 4;
  const int64_t in = task.in;
  const int64_t row_bytes = packed_int8_bytes(in);
  const char* x = static_cast<const char*>(task.packed) + row * row_bytes;
  const char* ahead = weights + (kChannels * in > kStreamedAhead ? kChannels * in : kStreamedAhead);
  __m512i sum[R][kChannels] = {};
  const auto add_lines = [&](int64_t k, const auto& load) {
    __m512i w[kChannels];
#pragma GCC unroll 4
    for (int c = 0; c < kChannels; ++c) {
      w[c] = _mm512_xor_si512(load(weights + c * in + k), flipped_bits<true>());
      if (prefetches) _mm_prefetch(ahead + k * kChannels + c * 64, _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i v = _mm512_loadu_si512(x + r * row_bytes + k);
#pragma GCC unroll 4
      for (int c = 0; c < kChannels; ++c) sum[r][c] = add_products<true>(sum[r][c], w[c], v);
    }
  };
  int64_t k = 0;
  for (; k + 64 <= in; k += 64) {
    add_lines(k, [](const char* from) { return _mm512_loadu_si512(from); });
  }
  if (k < in) {
    const __mmask64 mask = ~__mmask64{0} >> (64 - (in - k));
    add_lines(k, [mask](const char* from) { return _mm512_maskz_loadu_epi8(mask, from); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const __m128i flipped = _mm_set1_epi32(128 * task.row_totals[row + r]);
    const __m128 total = _mm_cvtepi32_ps(_mm_sub_epi32(totals_of(sum[r]), flipped));
    _mm_storeu_ps(sums + (row + r) * task.sums_stride,
                  _mm_mul_ps(total, _mm_set1_ps(task.row_scales[row + r])));
  }
}

template <int R>
inline void multiply_up_to(int rows, const DotTask& task, const char* weights, int row,
                           bool prefetches, float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return multiply_up_to<R - 1>(rows, task, weights, row, prefetches, sums);
  }
  multiply_four_channels<R>(task, weights, row, prefetches, sums);
}

/// Up to 16 channels, one after the other, times a row.
inline void stream_channels(const DotTask& task, const char* weights, int64_t channels, int row,
                            float* sums) {
  constexpr int kSums = 4;  // additions to one wait for each other
  const int64_t in = task.in;
  const char* x = static_cast<const char*>(task.packed) + row * packed_int8_bytes(in);
  __m512i totals[16] = {};
  for (int64_t c = 0; c < channels; ++c, weights += in) {
    __m512i sum[kSums] = {};
    const auto add_line = [&](int64_t k, int n, __m512i line) {
      const __m512i w = _mm512_xor_si512(line, flipped_bits<true>());
      sum[n] = add_products<true>(sum[n], w, _mm512_loadu_si512(x + k));
    };
    int64_t k = 0;
    for (; k + kSums * 64 <= in; k += kSums * 64) {
#pragma GCC unroll 4
      for (int n = 0; n < kSums; ++n) {
        const char* from = weights + k + n * 64;
        _mm_prefetch(from + kStreamedAhead, _MM_HINT_T1);
        add_line(k + n * 64, n, _mm512_loadu_si512(from));
      }
    }
    for (; k < in; k += 64) {
      const __mmask64 mask = ~__mmask64{0} >> (in - k < 64 ? 64 - (in - k) : 0);
      add_line(k, 0, _mm512_maskz_loadu_epi8(mask, weights + k));
    }
    totals[c] = sum[0];
    for (int n = 1; n < kSums; ++n) totals[c] = _mm512_add_epi32(totals[c], sum[n]);
  }
  transpose16(totals);
  __m512i sum = _mm512_set1_epi32(-128 * task.row_totals[row]);
  for (const __m512i lanes : totals) sum = _mm512_add_epi32(sum, lanes);
  const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(task.row_scales[row]));
  const auto mask = static_cast<__mmask16>((1U << channels) - 1);
  _mm512_mask_storeu_ps(sums + row * task.sums_stride, mask, v);
}

/// Rows that are packed one after the other: blocks of them pass over four channels, which stay in
/// the first-level cache meanwhile.
void dot_few_integers(const DotTask& task) {
  constexpr int kMostRows = 4;  // of a block, of which sums stay in registers
  const auto* weights = static_cast<const char*>(task.weights);
  const int blocks = (task.rows + kMostRows - 1) / kMostRows;
  int64_t c = 0;
  for (; task.rows > 1 && c + 4 <= task.channels; c += 4) {
    for (int block = 0; block < blocks; ++block) {
      const int row = block * task.rows / blocks;
      const int end = (block + 1) * task.rows / blocks;
      multiply_up_to<kMostRows>(end - row, task, weights + c * task.in, row, block == 0,
                                task.sums + c);
    }
  }
  for (; c < task.channels; c += 16) {
    const int64_t channels = task.channels - c < 16 ? task.channels - c : 16;
    for (int row = 0; row < task.rows; ++row) {
      stream_channels(task, weights + c * task.in, channels, row, task.sums + c);
    }
  }
}

/// As dot_few_integers() wants them: as if each were alone.
void pack_few_integers(const float* x, int64_t stride, int64_t rows, int64_t in,
                       const PackedRows& to) {
  const int64_t bytes = packed_int8_bytes(in);
  for (int64_t r = 0; r < rows; ++r) {
    pack_narrow_tiles<true>(
        x + r * stride, stride, 1, in,
        {static_cast<char*>(to.packed) + r * bytes, to.scales + r, to.totals + r});
  }
}

/// 16 channels of bf16 times R rows.
template <int R>
inline void dot_channels(const DotTask& task, const char* weights, int64_t channels, float* sums) {
  const int64_t channel_bytes = 2 * task.in;
  const int64_t tiles_k = (channel_bytes + 63) / 64;
  const auto* x = static_cast<const char*>(task.packed);
  const bool in_stream = 16 * channel_bytes <= kMostStreamedBytes;
  __m512i sum[R] = {};
  for (int64_t k = 0; k < tiles_k; ++k) {
    const int64_t bytes = channel_bytes - k * 64 < 64 ? channel_bytes - k * 64 : 64;
    const char* from = weights + k * 64;
    __m512i tile[16];
    if (channels == 16 && bytes == 64) {
      const char* ahead = in_stream ? weights + 16 * channel_bytes + k * 1024
                                    : from + prefetch_distance(k * 64, channel_bytes, 16);
      const int64_t stride = in_stream ? 64 : channel_bytes;
      for (int c = 0; c < 16; ++c) {
        tile[c] = _mm512_loadu_si512(from + c * channel_bytes);
        _mm_prefetch(ahead + c * stride, _MM_HINT_T1);
      }
    } else {
      alignas(64) char part[kTileBytes];
      copy_part(from, channel_bytes, channels, bytes, part);
      for (int c = 0; c < 16; ++c) {
        tile[c] = _mm512_load_si512(part + c * 64);
      }
    }
    transpose16(tile);
    const char* rows = x + k * 64 * R;
    for (int i = 0; i < 16; ++i) {
      for (int r = 0; r < R; ++r) {
        const __m512i two = _mm512_set1_epi32(load_raw<int32_t>(rows + (i * R + r) * 4));
        sum[r] = add_products<false>(sum[r], tile[i], two);
      }
    }
  }
  const auto mask = static_cast<__mmask16>((1U << channels) - 1);
  for (int r = 0; r < R; ++r) {
    _mm512_mask_storeu_ps(sums + r * task.sums_stride, mask, _mm512_castsi512_ps(sum[r]));
  }
}

template <int R>
void dot_rows(const DotTask& task) {
  if constexpr (R > 1) {
    if (task.rows < R) return dot_rows<R - 1>(task);
  }
  for (int64_t c = 0; c < task.channels; c += 16) {
    const int64_t channels = task.channels - c < 16 ? task.channels - c : 16;
    dot_channels<R>(task, static_cast<const char*>(task.weights) + c * 2 * task.in, channels,
                    task.sums + c);
  }
}

/// Tiles for all rows beyond most_dot_rows.
template <bool kInt8, Gathered kGathered>
TileKernels vector_tiles_without_dot(int most_dot_rows) {
  return {.most_dot_rows = most_dot_rows,
          .pack_dot = nullptr,
          .dot = nullptr,
          .step_inputs = kTileInputs<kInt8>,
          .pack = pack_tiles<kInt8>,
          .gather = gather_tiles<kGathered>,
          .multiply = multiply_vectors<kInt8, kGathered>};
}

template <bool kInt8>
TileKernels vector_tiles() {
  constexpr Gathered kGathered = kInt8 ? Gathered::flipped : Gathered::same;
  TileKernels tiles = vector_tiles_without_dot<kInt8, kGathered>(kMostVectorRows);
  tiles.pack_dot = kInt8 ? pack_few_integers : pack_narrow_tiles<false>;
  tiles.dot = kInt8 ? dot_few_integers : dot_rows<kMostVectorRows>;
  return tiles;
}

}  // namespace
}  // namespace faststream
