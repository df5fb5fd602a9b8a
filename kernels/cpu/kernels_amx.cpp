// Products on AMX tiles.
//
// The weights are the left operand: 16 channels x 64 bytes as they lie in the model file, so
// nothing of the model is packed. The activations, which are small, are packed once for each
// product to the layout of the right operand ("VNNI"): a tile holds, for 16 rows, 64 bytes of the
// inner dimension, four bytes of each row beside each other. A step multiplies 2 x 2 tiles; the
// same code serves int8 and bfloat16, which differ in the meaning of those bytes alone.
//
// Few rows: dot_tiles() takes the weights from memory as they come. Many rows: multiply() takes
// them from the first-level cache, where gather_tiles() put them, because they are read again for
// each 32 rows. Both step through the inner dimension in order, so their sums have the same bits.
#include <immintrin.h>

#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace faststream {
namespace {

constexpr int64_t kTileBytes = 1024;

/// Palette 1: eight tiles of 16 rows x 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles 0 to 3 are sums (channels x rows: 0 = 0x0, 1 = 0x1, 2 = 1x0, 3 = 1x1), 4 and 5 weights, 6
// and 7 activations.
template <bool kInt8>
inline void multiply_tiles() {
  if constexpr (kInt8) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

/// The same with tile 6 alone.
template <bool kInt8>
inline void multiply_left_tiles() {
  if constexpr (kInt8) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(2, 5, 6);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
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

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const int32_t* tiles) {
  _tile_loadd(0, tiles, 64);
  _tile_loadd(1, tiles + 256, 64);
  _tile_loadd(2, tiles + 512, 64);
  _tile_loadd(3, tiles + 768, 64);
}

inline void store_sums(int32_t* tiles) {
  _tile_stored(0, tiles, 64);
  _tile_stored(1, tiles + 256, 64);
  _tile_stored(2, tiles + 512, 64);
  _tile_stored(3, tiles + 768, 64);
}

/// Copies tile k of channels [begin, end) of both halves.
inline void gather_lines(const TileSource& source, int64_t k, int64_t begin, int64_t end,
                         char* to) {
  const auto* first = static_cast<const char*>(source.first) + k * 64;
  const auto* second = static_cast<const char*>(source.second) + k * 64;
  char* tile = to + k * 2 * kTileBytes;
  for (int64_t c = begin; c < end; ++c) {
    _mm512_store_si512(tile + c * 64, _mm512_loadu_si512(first + c * source.channel_bytes));
    _mm512_store_si512(tile + kTileBytes + c * 64,
                       _mm512_loadu_si512(second + c * source.channel_bytes));
  }
}

void gather_tiles(const TileSource& source, void* to) {
  for (int64_t k = 0; k < source.tiles_k; ++k) {
    gather_lines(source, k, 0, 16, static_cast<char*>(to));
  }
}

template <bool kInt8>
void multiply(const TileTask& task) {
  const TileConfig config;
  _tile_loadconfig(&config);
  const auto* weights = static_cast<const char*>(task.weights);
  const auto* packed = static_cast<const char*>(task.packed);
  auto* next_weights = static_cast<char*>(task.next_weights);
  const TileSource next = task.next;
  const auto* ahead_first = static_cast<const char*>(next.first) + task.ahead;
  const auto* ahead_second = static_cast<const char*>(next.second) + task.ahead;
  const int64_t pairs = (task.groups + 1) / 2;
  // The next task's weights are gathered, and those after it prefetched, between the steps of this
  // one: each pair of row groups takes some channels, each step a tile of theirs.
  const int64_t share = (16 + pairs - 1) / pairs;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const char* left = packed + 2 * pair * task.group_bytes;
    const bool is_whole = 2 * pair + 1 < task.groups;
    const char* right = is_whole ? left + task.group_bytes : left;
    const int64_t begin = pair * share < 16 ? pair * share : 16;
    const int64_t end = begin + share < 16 ? begin + share : 16;
    int32_t* tiles = task.partial + pair * 1024;
    if (task.is_first) {
      zero_sums();
    } else {
      load_sums(tiles);
    }
    for (int64_t k = 0; k < task.tiles_k; ++k) {
      _tile_loadd(6, left + k * kTileBytes, 64);
      _tile_loadd(4, weights + k * 2 * kTileBytes, 64);
      _tile_loadd(7, right + k * kTileBytes, 64);
      _tile_loadd(5, weights + k * 2 * kTileBytes + kTileBytes, 64);
      multiply_tiles<kInt8>();
      if (k >= next.tiles_k) continue;
      gather_lines(next, k, begin, end, next_weights);
      for (int64_t c = begin; task.ahead != 0 && c < end; ++c) {
        _mm_prefetch(ahead_first + c * next.channel_bytes + k * 64, _MM_HINT_T1);
        _mm_prefetch(ahead_second + c * next.channel_bytes + k * 64, _MM_HINT_T1);
      }
    }
    for (int64_t k = task.tiles_k; k < next.tiles_k; ++k) {
      gather_lines(next, k, begin, end, next_weights);
    }
    store_sums(tiles);
    if (!task.is_last) continue;
    const int64_t stride = task.sums_stride;
    float* sums = task.sums + pair * 32 * stride;
    float* second_sums = sums + task.second_column;
    const float* scales = task.row_scales + pair * 32;
    store_transposed<kInt8>(tiles, scales, sums, stride);
    store_transposed<kInt8>(tiles + 512, scales, second_sums, stride);
    if (is_whole) {
      store_transposed<kInt8>(tiles + 256, scales + 16, sums + 16 * stride, stride);
      store_transposed<kInt8>(tiles + 768, scales + 16, second_sums + 16 * stride, stride);
    }
  }
  _tile_release();
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
    const __m512 rounder = _mm512_set1_ps(0x1.8p23F);
    __m128i quarter[4];
    for (int64_t j = 0; j < 4; ++j) {
      // Fused as the compiler fuses quantize(): the same bytes whatever the number of rows.
      const __m512 v = load_row(x, k * 64 + j * 16, in);
      const __m512 rounded = _mm512_sub_ps(_mm512_fmadd_ps(v, inverse, rounder), rounder);
      quarter[j] = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(rounded));
    }
    const __m256i low = _mm256_set_m128i(quarter[1], quarter[0]);
    const __m256i high = _mm256_set_m128i(quarter[3], quarter[2]);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  } else {
    const __m512bh v = _mm512_cvtne2ps_pbh(load_row(x, k * 32 + 16, in), load_row(x, k * 32, in));
    __m512i bytes;
    __builtin_memcpy(&bytes, &v, sizeof v);
    return bytes;
  }
}

template <bool kInt8>
constexpr int64_t kTileInputs = kInt8 ? 64 : 32;

template <bool kInt8>
void pack_tiles(const float* x, int64_t stride, int64_t rows, int64_t in, void* packed,
                float* row_scales) {
  __m512 inverse[16];
  for (int64_t r = 0; kInt8 && r < 16; ++r) {
    inverse[r] = inverse_scale(x + r * stride, r < rows ? in : 0, row_scales[r]);
  }
  for (int64_t k = 0; k * kTileInputs<kInt8> < in; ++k) {
    __m512i tile[16];
    for (int64_t r = 0; r < 16; ++r) {
      tile[r] =
          r < rows ? load_narrow<kInt8>(x + r * stride, k, in, inverse[r]) : _mm512_setzero_si512();
    }
    store_tile(tile, static_cast<char*>(packed) + k * kTileBytes);
  }
}

template <bool kInt8>
void pack_narrow_tiles(const float* x, int64_t stride, int64_t rows, int64_t in, void* packed,
                       float* row_scales) {
  auto* quads = static_cast<uint32_t*>(packed);
  const int64_t tiles_k = (in + kTileInputs<kInt8> - 1) / kTileInputs<kInt8>;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = r / 16 * 16;  // of the group
    const int64_t width = rows - begin < 16 ? rows - begin : 16;
    uint32_t* to = quads + begin * tiles_k * 16 + r % 16;
    __m512 inverse = _mm512_setzero_ps();
    if (kInt8) inverse = inverse_scale(x + r * stride, in, row_scales[r]);
    for (int64_t k = 0; k < tiles_k; ++k) {
      alignas(64) uint32_t row[16];
      _mm512_store_si512(row, load_narrow<kInt8>(x + r * stride, k, in, inverse));
      for (int64_t i = 0; i < 16; ++i) to[(k * 16 + i) * width] = row[i];
    }
  }
}

/// A tile of weights at the end of a row or of the channels, where there is less: zeros beyond.
void copy_part(const char* from, int64_t channel_bytes, int64_t channels, int64_t bytes, char* to) {
  __builtin_memset(to, 0, kTileBytes);
  for (int64_t c = 0; c < channels; ++c) {
    __builtin_memcpy(to + c * 64, from + c * channel_bytes, static_cast<size_t>(bytes));
  }
}

/// Weights go from memory straight into tiles: 32 streams, which the processor's own prefetching
/// serves better than any by hand did.
template <bool kInt8>
void dot_tiles(const DotTask& task) {
  using Sum = std::conditional_t<kInt8, int32_t, float>;
  const bool has_right = task.rows > 16;
  const int left_bytes = has_right ? 64 : 4 * task.rows;  // of a row of a tile of x, and of sums
  const int right_bytes = has_right ? 4 * task.rows - 64 : 64;
  TileConfig config;
  config.bytes_per_row[0] = config.bytes_per_row[2] = config.bytes_per_row[6] =
      static_cast<uint16_t>(left_bytes);
  config.bytes_per_row[1] = config.bytes_per_row[3] = config.bytes_per_row[7] =
      static_cast<uint16_t>(right_bytes);
  _tile_loadconfig(&config);
  const int64_t channel_bytes = (kInt8 ? 1 : 2) * task.in;
  const int64_t tiles_k = (channel_bytes + 63) / 64;
  const auto* weights = static_cast<const char*>(task.weights);
  const auto* left = static_cast<const char*>(task.packed);
  const char* right = left + tiles_k * 16 * left_bytes;
  alignas(64) char part[2][kTileBytes];
  alignas(64) Sum sums[4][256];

  for (int64_t c = 0; c < task.channels; c += 32) {
    const char* first = weights + c * channel_bytes;
    const char* second = first + 16 * channel_bytes;
    const int64_t channels = task.channels - c < 32 ? task.channels - c : 32;
    zero_sums();
    for (int64_t k = 0; k < tiles_k; ++k) {
      const int64_t bytes = channel_bytes - k * 64 < 64 ? channel_bytes - k * 64 : 64;
      _tile_loadd(6, left + k * 16 * left_bytes, left_bytes);
      if (channels == 32 && bytes == 64) {
        _tile_loadd(4, first + k * 64, channel_bytes);
        _tile_loadd(5, second + k * 64, channel_bytes);
      } else {
        const int64_t in_first = channels < 16 ? channels : 16;
        copy_part(first + k * 64, channel_bytes, in_first, bytes, part[0]);
        copy_part(second + k * 64, channel_bytes, channels - in_first, bytes, part[1]);
        _tile_loadd(4, part[0], 64);
        _tile_loadd(5, part[1], 64);
      }
      if (has_right) {
        _tile_loadd(7, right + k * 16 * right_bytes, right_bytes);
        multiply_tiles<kInt8>();
      } else {
        multiply_left_tiles<kInt8>();
      }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    for (int64_t r = 0; r < task.rows; ++r) {
      float* to = task.sums + r * task.sums_stride + c;
      for (int64_t i = 0; i < channels; ++i) {
        const Sum sum = sums[i / 16 * 2 + r / 16][i % 16 * 16 + r % 16];
        to[i] = kInt8 ? static_cast<float>(sum) * task.row_scales[r] : static_cast<float>(sum);
      }
    }
  }
  _tile_release();
}

}  // namespace

void add_amx_kernels(Kernels& kernels) {
  kernels.pack_narrow_tiles_i8 = pack_narrow_tiles<true>;
  kernels.pack_narrow_tiles_bf16 = pack_narrow_tiles<false>;
  kernels.dot_tiles_i8 = dot_tiles<true>;
  kernels.dot_tiles_bf16 = dot_tiles<false>;
  kernels.pack_tiles_i8 = pack_tiles<true>;
  kernels.pack_tiles_bf16 = pack_tiles<false>;
  kernels.gather_tiles = gather_tiles;
  kernels.tiles_i8 = multiply<true>;
  kernels.tiles_bf16 = multiply<false>;
}

}  // namespace faststream
