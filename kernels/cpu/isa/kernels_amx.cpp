// Products on AMX tiles.
//
// The weights are the left operand, the packed activations the right one. A step multiplies 2 x 2
// tiles; the same code serves int8 and bfloat16, which differ in the meaning of four bytes alone.
//
// Few rows: dot_tiles() takes the weights from memory as they come. Many rows: multiply() takes
// them from the first-level cache, where gather_tiles() put them, because they are read again for
// each 32 rows. Both step through the inner dimension in order, so their sums have the same bits.
//
// Floats: amx_floats.h.
#include <immintrin.h>

#include <type_traits>

#include "kernels/cpu/linear/amx_floats.h"
#include "kernels/cpu/linear/amx_tiles.h"
#include "kernels/cpu/linear/tile_kernels.h"

namespace faststream {
namespace {

template <bool kInt8, Gathered kGathered>
void multiply(const TileTask& task) {
  const auto* weights = static_cast<const char*>(task.weights);
  auto* next_weights = static_cast<char*>(task.next_weights);
  const TileSource next = task.next;
  const int64_t pairs = (task.groups + 1) / 2;
  // The next task's weights are gathered, and those after it prefetched, between the steps of this
  // one: each pair of row groups takes some channels, each step a tile of theirs.
  const int64_t share = (16 + pairs - 1) / pairs;
  multiply_pairs<kInt8>(task, [&](int64_t pair, const char* left, const char* right) {
    const int64_t begin = pair * share < 16 ? pair * share : 16;
    const int64_t end = begin + share < 16 ? begin + share : 16;
    for (int64_t k = 0; k < task.tiles_k; ++k) {
      _tile_loadd(6, left + k * kTileBytes, 64);
      _tile_loadd(4, weights + k * 2 * kTileBytes, 64);
      _tile_loadd(7, right + k * kTileBytes, 64);
      _tile_loadd(5, weights + k * 2 * kTileBytes + kTileBytes, 64);
      multiply_tiles<kInt8>();
      if (k >= next.tiles_k) continue;
      gather_ahead<kGathered>(next, k, begin, end, task.ahead, next_weights);
    }
    for (int64_t k = task.tiles_k; k < next.tiles_k; ++k) {
      gather_lines<kGathered>(next, k, begin, end, next_weights);
    }
  });
}

/// Weights go from memory straight into tiles, in 32 streams.
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
        const char* ahead = first + k * 64 + prefetch_distance(k * 64, channel_bytes, 32);
        for (int64_t i = 0; i < 32; ++i) {
          _mm_prefetch(ahead + i * channel_bytes, _MM_HINT_T1);
        }
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

template <bool kInt8>
TileKernels amx_tiles() {
  return {.most_dot_rows = kMostPackedRows,
          .pack_dot = pack_narrow_tiles<kInt8>,
          .dot = dot_tiles<kInt8>,
          .step_inputs = kTileInputs<kInt8>,
          .pack = pack_tiles<kInt8>,
          .gather = gather_tiles<Gathered::same>,
          .multiply = multiply<kInt8, Gathered::same>};
}

/// Of i8 weights beside bf16.
TileKernels widening_tiles() {
  constexpr Gathered kGathered = Gathered::widened;
  return {.most_dot_rows = 0,
          .pack_dot = nullptr,
          .dot = nullptr,
          .step_inputs = 32,
          .pack = pack_tiles<false>,
          .gather = gather_tiles<kGathered>,
          .multiply = multiply<false, kGathered>};
}

}  // namespace

void add_amx_kernels(Kernels& kernels) {
  // What vectors do with few rows stays.
  kernels.tiles_i4.gather = gather_tiles<Gathered::chosen>;
  kernels.tiles_i4.multiply = multiply<true, Gathered::chosen>;
  kernels.tiles_i8 = amx_tiles<true>();
  kernels.tiles_bf16 = amx_tiles<false>();
  kernels.tiles_i8_wide = widening_tiles();
  kernels.tiles_f32 = float_tiles();
}

}  // namespace faststream
