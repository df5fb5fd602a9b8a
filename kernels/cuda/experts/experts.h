// What the parts of experts() share. A pair is a token with one of its experts: pair t · used + k
// is token t with the k-th of its choice. Pairs are sorted by expert, so that each expert's rows
// are together: their places are rows of the first product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/tiling.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"

namespace faststream {

/// Choosing holds the scores of a token in registers.
inline constexpr int32_t kMostExperts = 4096;
/// Rows of the tiles of kernels for experts with few.
inline constexpr int32_t kFewTileRows = kFewCodedRows;
/// Pairs that a block sorts, where several do.
inline constexpr int32_t kBlockPairs = 2048;

/// Who works on what. Device memory.
struct Routing {
  int32_t* experts = nullptr;   ///< [pairs] for route() alone
  float* weights = nullptr;     ///< [pairs]
  int32_t* place_of = nullptr;  ///< [pairs]
  int32_t* token_at = nullptr;  ///< [pairs] by place
  RowTile* tiles = nullptr;     ///< [max_tiles] places of one expert
  int32_t* n_tiles = nullptr;   ///< [1]
  /// Scratch memory, [pairs / kBlockPairs, experts]; null: one block sorts all.
  int32_t* block_counts = nullptr;
  int32_t tile_rows = 0;   ///< of a tile at most
  int32_t tile_grain = 0;  ///< of which all but an expert's last tile have a multiple
  int32_t max_tiles = 0;   ///< of any choice of experts
};

/// Fills `routing` for the tokens of `scores`; those of them from n_experts on that are chosen have
/// no place. Where the tokens of an expert come among its places
/// is not determined; no result depends on it.
void route(const Matrix& scores, const Router& router, int32_t n_experts, const Routing& routing,
           const Queue& queue);

/// Rows of x [rows, in] times the matrices of their experts, as rows of the result by place.
struct GroupedProduct {
  const void* x = nullptr;
  DType x_dtype = DType::f32;         ///< as few_rows_fit() wants it, or i8 beside integers
  int64_t x_stride = 0;               ///< elements
  const int32_t* x_rows = nullptr;    ///< the row of x of each place; null: the place
  const float* row_scales = nullptr;  ///< [rows of x], where x is i8
  Weight weight;
  int64_t outputs = 0;  ///< of an expert: half its rows when gated
  bool gated = false;
  Destination to;      ///< bias and scales: of all experts
  int32_t places = 0;  ///< rows of the result
  const RowTile* tiles = nullptr;
  const int32_t* n_tiles = nullptr;
  int32_t tile_rows = 0;
  int32_t max_tiles = 0;
};

/// Rows of a tile that suit so many pairs: kFewTileRows, 64 or 128.
int32_t choose_tile_rows(int64_t pairs, int64_t n_experts);

/// On the tensor cores: x and weight of one 16-bit type or both i8, rows of both at multiples of 16
/// bytes.
void grouped_product_mma(const GroupedProduct& product, const Queue& queue);

/// Whether grouped_product_sm90a() takes both products of experts whose result is so wide. Of rows
/// that do not fit, other gates and none: their kernels are those of any GPU.
bool warpgroups_fit(const Matrix& x, const Experts& experts, int64_t hidden);

/// The same by warpgroups, on Hopper: x by place (x_rows is null), tiles of at most kMaxTileRows
/// rows. To x's 16-bit type, of i8 to bf16, when gated, else to f32.
void grouped_product_sm90a(const GroupedProduct& product, const Queue& queue);

/// In float arithmetic: any types and alignment.
void grouped_product_any(const GroupedProduct& product, const Queue& queue);

/// What experts() takes for each row of a product of its shape: `out` as GroupedProduct::outputs.
constexpr size_t expert_row_bytes(int64_t in, int64_t out) {
  return static_cast<size_t>(in + 4 * out + 32);
}

/// And where their inputs are weighed.
constexpr size_t weighed_row_bytes(int64_t in) { return static_cast<size_t>(in) * sizeof(float); }

/// What experts() does at a time of `pairs`, when its two products take so many bytes a pair.
ScratchPiece experts_piece(int64_t pairs, int64_t used, size_t bytes_per_pair);

}  // namespace faststream
