// AMX tiles: their configuration and what is done with them. Everything is local to the including
// file.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/linear/tile_kernels.h"

namespace faststream {
namespace {

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

/// A task: multiply(pair, left, right) adds to tiles 0 to 3 what the task's weights and both groups
/// of a pair of packed rows give; a last group without another is both.
template <bool kInt8, class Multiply>
inline void multiply_pairs(const TileTask& task, const Multiply& multiply) {
  const TileConfig config;
  _tile_loadconfig(&config);
  const auto* packed = static_cast<const char*>(task.packed);
  for (int64_t pair = 0; 2 * pair < task.groups; ++pair) {
    const char* left = packed + 2 * pair * task.group_bytes;
    const char* right = 2 * pair + 1 < task.groups ? left + task.group_bytes : left;
    int32_t* tiles = task.partial + pair * 1024;
    if (task.is_first) {
      zero_sums();
    } else {
      load_sums(tiles);
    }
    multiply(pair, left, right);
    store_sums(tiles);
    if (task.is_last) store_results<kInt8>(task, pair);
  }
  _tile_release();
}

}  // namespace
}  // namespace faststream
