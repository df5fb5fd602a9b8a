// How products of many rows are divided into tiles (kernels/cuda/linear/tiling.h).
#include "kernels/cuda/linear/tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace faststream {
namespace {

constexpr int32_t kBlocks = 132;

void expect_divided(const TiledProduct& product) {
  const Tiling tiling = choose_tiling(product, kBlocks);
  SCOPED_TRACE(std::to_string(product.rows) + " rows, " + std::to_string(product.across) +
               " tiles of channels, " + std::to_string(product.steps) + " steps");
  ASSERT_TRUE(tiling.rows > 0 && tiling.rows <= kMaxTileRows && tiling.rows % kPartRows == 0);
  ASSERT_EQ(tiling.cut_rows % kPartRows, 0);
  if (tiling.split > 1) {
    ASSERT_TRUE(product.halves && tiling.pieces * tiling.split <= kBlocks);
    ASSERT_EQ(tiling.rows % (2 * kPartRows), 0);
  }
  const auto size = static_cast<size_t>(product.rows) * static_cast<size_t>(product.across);
  std::vector<int> times(size);
  for (int32_t n = 0; n < tiling.pieces; ++n) {
    const TilePiece piece = piece_of_tile(tiling, product.rows, n);
    ASSERT_LE(piece.rows, tiling.rows);
    ASSERT_TRUE(piece.first_row >= 0 && piece.across < product.across);
    ASSERT_TRUE(piece.rows == 0 || piece.first_row + piece.rows <= product.rows);
    for (int32_t i = 0; i < piece.rows; ++i) {
      ++times[static_cast<size_t>((piece.first_row + i) * product.across + piece.across)];
    }
  }
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(times, 1)), size);
}

TEST(Tiling, EveryRowMeetsAllChannelsOnce) {
  for (const bool halves : {false, true}) {
    for (const int32_t across : {1, 3, 48, 224}) {
      for (const int32_t rows : {1, 31, 65, 150, 300, 407, 512, 1900, 2100}) {
        for (const int32_t steps : {1, 2, 32, 224}) {
          expect_divided({.rows = rows, .across = across, .steps = steps, .halves = halves});
        }
      }
    }
  }
}

TEST(Tiling, TilesThatAreLeftForFewBlocksAreCut) {
  // 448 tiles of 256 rows: 52 are left for the fourth turn of 132 blocks.
  const Tiling tiling = choose_tiling({.rows = 512, .across = 224, .steps = 64}, kBlocks);
  EXPECT_EQ(tiling.rows, 256);
  EXPECT_EQ(tiling.whole, 396);
  EXPECT_EQ(tiling.pieces, 396 + 2 * 52);
}

TEST(Tiling, BlocksShareInputsWhereThereAreFewTiles) {
  EXPECT_EQ(choose_tiling({.rows = 64, .across = 32, .steps = 112, .halves = true}, kBlocks).split,
            2);
  EXPECT_EQ(choose_tiling({.rows = 64, .across = 32, .steps = 112}, kBlocks).split, 1);
}

}  // namespace
}  // namespace faststream
