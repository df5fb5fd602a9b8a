// How a product of many rows is divided into tiles, for the kernel of product_sm90a.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

namespace faststream {

inline constexpr int32_t kTileChannels = 128;  // rows of the weight
inline constexpr int32_t kMinTileRows = 64;    // of x
inline constexpr int32_t kMaxTileRows = 256;
// Beside codes of floats sums are in registers twice.
inline constexpr int32_t kMostRowsBesideCodes = 128;
inline constexpr int32_t kMostRowsBesideE4m3 = 160;
inline constexpr int32_t kPartRows = 32;    // tiles have a multiple
inline constexpr int32_t kBandRows = 2048;  // go through all weights together, in the L2 cache

/// Rows of x that meet one of several weights, that of an expert.
struct RowTile {
  int32_t expert = 0;
  int32_t first = 0;
  int32_t rows = 0;
};

/// What is divided: rows of x, tiles of the weight's channels, and steps of the inputs.
struct TiledProduct {
  int32_t rows = 0;
  int32_t across = 0;
  int32_t steps = 0;
  bool halves = false;     ///< sums do not depend on whether two have half of the inputs each
  int32_t step_parts = 1;  ///< of 128 bytes of a row of x
  int32_t most_rows = kMaxTileRows;  ///< of x, of a tile
};

/// Tiles have as many rows of x each. Those that blocks would take last, when there are fewer tiles
/// than blocks, may be cut into pieces, so that more blocks have one.
struct Tiling {
  int32_t rows = 0;      ///< of x, of a tile
  int32_t down = 0;      ///< tiles, of x's rows
  int32_t band = 0;      ///< of these, how many go through all channels together
  int32_t across = 0;    ///< tiles, of channels
  int32_t split = 1;     ///< blocks that divide the inputs of a tile: 1 or 2
  int32_t whole = 0;     ///< tiles that are not cut
  int32_t cuts = 1;      ///< pieces of each other tile
  int32_t cut_rows = 0;  ///< of a piece
  int32_t pieces = 0;    ///< of all, whole tiles among them
};

/// Whether two blocks may divide the inputs of a tile of so many rows, each of which finishes half
/// of the rows. Their kernels are made for that (product_sm90a.cuh).
constexpr bool can_divide(int32_t rows) { return rows == 64 || rows == 128; }

/// What a block takes at a time: some rows of x beside the channels of one tile.
struct TilePiece {
  int32_t first_row = 0;
  int32_t rows = 0;    ///< that there are, maybe none
  int32_t across = 0;  ///< the tile of channels
};

/// The n-th piece of x's `rows` rows. Tiles beside each other are those of one band, whose rows and
/// channels' weights are in the L2 cache.
constexpr TilePiece piece_of_tile(const Tiling& t, int32_t rows, int32_t n) {
  int32_t tile = n;
  int32_t cut = 0;
  if (n >= t.whole) {
    const auto past = static_cast<uint32_t>(n - t.whole);
    const auto cuts = static_cast<uint32_t>(t.cuts);
    tile = t.whole + static_cast<int32_t>(past / cuts);
    cut = static_cast<int32_t>(past % cuts);
  }
  int32_t before = 0;  // tiles down, of bands before
  for (; tile >= t.band * t.across; tile -= t.band * t.across) before += t.band;
  const auto height = static_cast<uint32_t>(std::min(t.band, t.down - before));
  const auto in_band = static_cast<uint32_t>(tile);
  const int32_t tile_row = (before + static_cast<int32_t>(in_band % height)) * t.rows;
  const int32_t tile_end = std::min(tile_row + t.rows, rows);
  const int32_t first = tile_row + cut * t.cut_rows;
  const int32_t most = n < t.whole ? t.rows : t.cut_rows;
  return {first, std::clamp(tile_end - first, 0, most), static_cast<int32_t>(in_band / height)};
}

/// Chooses a tiling by the time of what a multiprocessor's block takes, one after the other.
class TilingChooser {
 public:
  TilingChooser(const TiledProduct& product, int32_t blocks) : product_(product), blocks_(blocks) {}

  Tiling choose() {
    for (int32_t rows = kMinTileRows; rows <= product_.most_rows; rows += kPartRows) consider(rows);
    return best_;
  }

 private:
  // Nanoseconds on an H100, as measured in a model: of a step's part with so many rows, of a tile's
  // end, and of adding the parts of two blocks.
  static constexpr int64_t step_time(int32_t rows) { return 135 + 11 * rows / 5; }
  static constexpr int64_t end_time(int32_t rows) { return 600 + 9 * rows; }
  static constexpr int64_t adding_time(int32_t rows) { return 2000 + 10 * rows; }

  static constexpr int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }
  [[nodiscard]] int64_t tile_time(int32_t rows, int32_t steps) const {
    return steps * product_.step_parts * step_time(rows) + end_time(rows);
  }

  void consider(int32_t rows) {
    const int32_t down = ceil_div(product_.rows, rows);
    const int32_t tiles = down * product_.across;
    const Tiling tiling{.rows = rows,
                        .down = down,
                        .band = ceil_div(kBandRows, rows),
                        .across = product_.across,
                        .whole = tiles,
                        .pieces = tiles};
    const int64_t time = tile_time(rows, product_.steps);
    take(tiling, ceil_div(tiles, blocks_) * time);

    const int32_t rest = tiles % blocks_;
    if (tiles > blocks_ && rest > 0 && 2 * rest <= blocks_) {
      Tiling cut = tiling;
      cut.cut_rows = ceil_div(rows, blocks_ / rest * kPartRows) * kPartRows;
      cut.cuts = ceil_div(rows, cut.cut_rows);
      cut.whole = tiles - rest;
      cut.pieces = cut.whole + rest * cut.cuts;
      take(cut, tiles / blocks_ * time + tile_time(cut.cut_rows, product_.steps));
    }
    if (product_.halves && 2 * tiles <= blocks_ && product_.steps > 1 && can_divide(rows)) {
      Tiling divided = tiling;
      divided.split = 2;
      take(divided, tile_time(rows, ceil_div(product_.steps, 2)) + adding_time(rows));
    }
  }

  void take(const Tiling& tiling, int64_t time) {
    if (best_.rows > 0 && time >= least_) return;
    best_ = tiling;
    least_ = time;
  }

  TiledProduct product_;
  int32_t blocks_;
  Tiling best_;
  int64_t least_ = 0;
};

/// For so many blocks at once, one a multiprocessor.
inline Tiling choose_tiling(const TiledProduct& product, int32_t blocks) {
  return TilingChooser(product, blocks).choose();
}

}  // namespace faststream
