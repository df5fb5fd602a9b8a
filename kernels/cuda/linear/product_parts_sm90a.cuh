// What the warps of product_sm90a.cuh's kernel share: what it is made for, and the tiles and stages
// that they go through.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/int4.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/tiling.h"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kGroups = 2;  // warpgroups that multiply
constexpr int kGroupChannels = 64;
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kStagesBytes = 196608;                           // of all stages
constexpr int kWeightsBytes = kTileChannels * kBlockRowBytes;  // of a stage
constexpr int kMaxStages = kStagesBytes / (kWeightsBytes + kPartRows * kBlockRowBytes);
constexpr int kResultBytes = 16384;  // of a warpgroup's, on their way
static_assert(kTileChannels == kGroups * kGroupChannels);

/// What becomes of sums, besides scales and biases.
enum class Finish {
  none,
  gate,       ///< pairs of sums become one result; of SiLU, but beside experts and packed weights
  activation  ///< any function of one element, of 16-bit products
};

/// Weights of int4 beside int8 rows of x, and codes of floats beside rows of bf16: widened to x's
/// type in registers.
struct Int4 {};
struct Coded {};
constexpr int kPackedWord = 4;  // bytes
constexpr int kMaxPackedStages = 3;

/// What a kernel is made for: elements of x and the weight, and of the result, and tiles of at most
/// so many rows of x. Kernels of many rows have code that few rows would wait for: 64 rows of
/// 4,096 outputs and inputs took 20.6 us in a model by the kernel of 256 rows, 15.6 by their own.
/// kManyWeights: of experts, each beside rows of its own.
template <typename ElementType, typename OutType, Finish kLast, int kMostRows,
          bool kManyWeights = false>
struct Kind {
  static constexpr bool kE4m3 = std::is_same_v<ElementType, __nv_fp8_e4m3>;
  static constexpr bool kCoded = std::is_same_v<ElementType, Coded>;
  static constexpr bool kPacked = kCoded || std::is_same_v<ElementType, Int4>;
  using Element =  // of x
      std::conditional_t<kCoded, __nv_bfloat16, std::conditional_t<kPacked, int8_t, ElementType>>;
  using Out = OutType;
  static constexpr bool kIntegers = std::is_same_v<Element, int8_t>;
  using Sum = std::conditional_t<kIntegers, int32_t, float>;
  static constexpr bool kScaledRows = kIntegers || kE4m3;  // of x
  static constexpr bool kGated = kLast == Finish::gate;
  static constexpr bool kActivated = kLast == Finish::activation;
  static constexpr bool kGrouped = kManyWeights;
  static constexpr int kRows = kMostRows;
  /// Whether sums are those of two halves of the inputs, or of any parts.
  static constexpr bool kHalves = (kIntegers || kCoded || kE4m3) && !kGrouped;
  static constexpr bool kDivides = kHalves && can_divide(kRows);  // if tiles have all these rows
  /// Weights are read once, as rows that so few tiles take are one tile's; a hint takes time: with
  /// one that says nothing, 128 sequences of Llama-3-8B made 2.5% fewer tokens, in int4 7%.
  static constexpr bool kReadsOnce = kRows <= 64 && !kGrouped;
  static constexpr int kPartsBytes = kRows / 2 * kTileChannels * static_cast<int>(sizeof(Sum));
  static constexpr int kOutputs = kGated ? kTileChannels / 2 : kTileChannels;
  static constexpr int kGroupOutputs = kOutputs / kGroups;
  static constexpr int kXColumns = kBlockRowBytes / static_cast<int>(sizeof(Element));
  static constexpr int kStepParts =
      kPacked || kE4m3 ? static_cast<int>(kPackedBlock) / kXColumns : 1;  // of x
  static constexpr int kStepColumns = kStepParts * kXColumns;

  /// Results leave in boxes of so many columns, a warpgroup's side by side.
  static constexpr int kBoxBytes = std::min<int>(kGroupOutputs * sizeof(Out), kBlockRowBytes);
  static constexpr int kBoxColumns = kBoxBytes / static_cast<int>(sizeof(Out));
  static constexpr int kBoxes = kGroupOutputs / kBoxColumns;
  static constexpr int kPieceRows = std::min(kRows, kResultBytes / kBoxes / kBoxBytes);
  static constexpr int kPieces = kRows / kPieceRows;
};

/// A stage has a step's weights, and below them its rows of x. Of packed weights, stages of these,
/// each a block of columns, come first, then those of x, and of int4 DeviceInt4Table at last.
struct Shared {
  std::byte stages[kStagesBytes];
  std::byte results[kGroups][kResultBytes];
  uint64_t there[kMaxStages];
  uint64_t done[kMaxStages];
  uint64_t weights_there[kMaxPackedStages];  ///< of packed weights, apart from x
  uint64_t weights_done[kMaxPackedStages];
  uint64_t parts;  ///< sums that the cluster's other block sends are there
};

__device__ inline DeviceInt4Table& int4_table(Shared& shared) {
  return *reinterpret_cast<DeviceInt4Table*>(shared.stages + kStagesBytes -
                                             sizeof(DeviceInt4Table));
}

struct Maps {
  CUtensorMap x;
  CUtensorMap x_part;  // boxes of kPartRows
  CUtensorMap weight;
  CUtensorMap out;       // boxes of a piece
  CUtensorMap out_part;  // of kPartRows
  CUtensorMap far;       // the same on another GPU, if results go there, too
  CUtensorMap far_part;
};

struct Arguments {
  Product product;
  Tiling tiling;
  int32_t steps = 0;  // of kStepColumns of the inputs
  int32_t stage_bytes = 0;
  int32_t n_stages = 0;
  int32_t n_weight_stages = 0;  // of packed weights alone
  CodedLayout coded = {};
  int64_t weight_row_bytes = 0;  // of E4M3
  // Of kinds of many weights: how many, and how they divide rows, in device memory. The tiling says
  // how many rows a tile has at most.
  int32_t experts = 1;
  const RowTile* row_tiles = nullptr;
  const int32_t* n_row_tiles = nullptr;
};

/// Bytes of a row of a block of packed weights, and of a stage.
template <typename K>
__host__ __device__ int packed_pitch(const Arguments& a) {
  return K::kCoded ? a.coded.block_bytes : static_cast<int>(kInt4BlockBytes);
}
template <typename K>
__host__ __device__ int packed_stage_bytes(const Arguments& a) {
  return kTileChannels * packed_pitch<K>(a);
}

/// Where the weights of a part of the inputs begin in a row of the weight's map, of E4M3 in words.
template <typename K>
__device__ int weights_column(int part) {
  return part * K::kXColumns / (K::kE4m3 ? kPackedWord : 1);
}

struct Tile {
  int first_row = 0;     // of x
  int rows = 0;          // that there are
  int first_output = 0;  // of the result
  int expert = 0;        // whose weight it is
};

/// Where the pipeline of stages is.
struct Place {
  int stage = 0;
  uint32_t parity = 0;  // of the phase in which the stage becomes full

  __device__ void advance(int n_stages) {
    if (++stage < n_stages) return;
    stage = 0;
    parity ^= 1U;
  }
};

/// The steps of this block, the same in all its tiles.
struct Steps {
  int first = 0;
  int count = 0;
};

__device__ Steps steps_of_block(const Arguments& a) {
  if (a.tiling.split == 1) return {0, a.steps};
  const int half = a.steps / 2;
  return rank_in_cluster() == 0 ? Steps{0, half} : Steps{half, a.steps - half};
}

/// Calls f(tile) for each tile, or piece of one, of this block's cluster.
template <typename K, typename F>
__device__ void for_tiles(const Arguments& a, const F& f) {
  if constexpr (K::kGrouped) {
    // Blocks beside each other have the same rows and other channels. A tile's description is on
    // its way while the one before is multiplied.
    const int across = a.tiling.across;
    const int count = *a.n_row_tiles * across;
    const auto tile_of = [&](int n) {
      if (n >= count) return Tile{};
      const RowTile rows = a.row_tiles[n / across];
      return Tile{rows.first, rows.rows, n % across * K::kOutputs, rows.expert};
    };
    Tile next = tile_of(static_cast<int>(blockIdx.x));
#pragma unroll 1
    for (int n = static_cast<int>(blockIdx.x); n < count; n += static_cast<int>(gridDim.x)) {
      const Tile tile = next;
      next = tile_of(n + static_cast<int>(gridDim.x));
      f(tile);
    }
  } else {
#pragma unroll 1
    for (int n = cluster_of_block(); n < a.tiling.pieces; n += clusters()) {
      const TilePiece piece = piece_of_tile(a.tiling, a.product.rows, n);
      if (piece.rows > 0) f(Tile{piece.first_row, piece.rows, piece.across * K::kOutputs});
    }
  }
}

}  // namespace

}  // namespace faststream
