// Products of a few rows beside codes of floats (kernels/cuda/coded.cuh), on Hopper: each warp
// widens the codes of its own sixteen channels in registers. Of that there is least: it takes 12 to
// 20 instructions for eight codes. So sixteen warps are on a multiprocessor, where others of a
// scheduler work while one waits, and one more of each block copies for them.
//
// A block makes a tile of channels, in steps of a block of 512 columns, which are brought to shared
// memory while the one before is multiplied; beside experts it goes from tile to tile. Rows of x
// that a tile does not have are neither copied nor stored. Where one weight has fewer tiles than
// there are places for blocks, a cluster of blocks divides the columns of one, and each makes the
// results of some of its channels.
//
// Of 512 columns each sum is a chain from the first to the last. These are added in order, in each
// half of the inputs, of experts all together, as warpgroups do it beside many rows
// (product_consumer_sm90a.cuh) and the step's kernel beside one.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/tiling.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kWarpChannels = 16;
constexpr int kEight = 8;   // rows of x that an instruction takes
constexpr int kPiece = 16;  // bytes that a copy takes
constexpr int kStages = 2;
constexpr int kBlockSteps = static_cast<int>(kPackedBlock / kPackedStep);
constexpr int kStepBytes = static_cast<int>(kPackedStep) * 2;  // of x
constexpr int kMostCluster = 8;
constexpr int kTogether = 4;  // steps of a turn, a multiple of those of a group

/// The format that CodedStep knows another by.
constexpr WeightFormat codes_of(WeightFormat format) {
  return format == WeightFormat::int4_g32 || format == WeightFormat::int4_g64
             ? WeightFormat::int4_g128
             : format;
}

/// From one row of x to the next in shared memory: an odd number of pieces, so that eight rows' are
/// in different banks.
constexpr int kXBytes = static_cast<int>(kPackedBlock) * 2;
constexpr int kXPitch = kXBytes + kPiece;

constexpr int kRows = kFewCodedRows;  // of x, of a tile
constexpr int kEights = kRows / kEight;
constexpr int kWarps = 8;  // that multiply
constexpr int kThreads = (kWarps + 1) * kWarp;
constexpr int kBlocks = 2;  // on a multiprocessor
constexpr int kChannels = kWarps * kWarpChannels;
constexpr int kWarpSums = kEights * 4;  // of a lane
constexpr int kBlockSums = kWarps * kWarpSums * kWarp;

/// Blocks of columns that one of a cluster's blocks has at most: in the end their sums are where
/// its stages were.
constexpr int kMostColumnBlocks = 12;

constexpr int weights_bytes(WeightFormat format) {
  return kChannels * static_cast<int>(packed_block_bytes(format));
}
constexpr int stage_bytes(WeightFormat format) { return weights_bytes(format) + kRows * kXPitch; }
static_assert(kMostColumnBlocks * kBlockSums * sizeof(float) <=
              kStages * stage_bytes(WeightFormat::mxfp4));
static_assert(kRows <= kWarp, "a lane copies a row");

struct Arguments {
  Product product;
  RowTiles tiles;
  int column_blocks = 0;
};

/// The blocks of columns of one block of a cluster.
struct ColumnBlocks {
  int first;
  int count;

  __device__ ColumnBlocks(int all, int rank, int cluster)
      : first(rank * all / cluster), count((rank + 1) * all / cluster - first) {}
};

/// What a block makes at a time.
struct Tile {
  RowTile rows;
  int first_channel;  // of a gate's pairs the first's and the second's in turn, by eights
  ColumnBlocks columns;
};

/// Calls f(tile) for each of this block's. Of experts, when there are inputs.
template <bool kGated, bool kGrouped, typename F>
__device__ void for_tiles(const Arguments& a, const F& f) {
  if constexpr (kGrouped) {
    // Blocks beside each other have the same rows and other channels.
    const int across =
        ceil_div(static_cast<int>(a.product.outputs), kGated ? kChannels / 2 : kChannels);
    const int count = *a.tiles.n_tiles * across;
#pragma unroll 1
    for (int n = static_cast<int>(blockIdx.x); n < count; n += static_cast<int>(gridDim.x)) {
      f(Tile{a.tiles.tiles[n / across], n % across * kChannels, {a.column_blocks, 0, 1}});
    }
  } else {
    f(Tile{{.rows = a.product.rows},
           cluster_of_block() * kChannels,
           {a.column_blocks, rank_in_cluster(), cluster_size()}});
  }
}

/// A stage's copies are there; all warps have read it.
struct Barriers {
  uint64_t there[kStages];
  uint64_t read[kStages];
};

/// What a warp copies for the others: a tile's weights and rows of x, a block of columns after the
/// other, as soon as there is room.
template <WeightFormat kFormat, bool kGated, bool kGrouped>
class Copier {
 public:
  __device__ Copier(const CUtensorMap& weights, const Arguments& a, unsigned char* stages,
                    Barriers& barriers)
      : weights_(weights),
        a_(a),
        stages_(stages),
        barriers_(barriers),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  /// wait: for inputs.
  template <typename Wait>
  __device__ void copy(const Tile& tile, const Wait& wait) {
    // Weights are there before the inputs, but of experts: which these are is one of them.
    const int ahead = kGrouped ? 0 : min(tile.columns.count, kStages);
#pragma unroll 1
    for (int n = 0; n < ahead; ++n) begin_stage(tile, n);
    if constexpr (!kGrouped) wait();
    const unsigned char* x = nullptr;
    if (lane_ < tile.rows.rows) {
      const int at = tile.rows.first + lane_;
      const int64_t row = a_.tiles.x_rows != nullptr ? a_.tiles.x_rows[at] : at;
      x = static_cast<const unsigned char*>(a_.product.x) + row * a_.product.x_stride * 2 +
          tile.columns.first * kXBytes;
    }
#pragma unroll 1
    for (int n = 0; n < tile.columns.count; ++n) {
      if (n >= ahead) begin_stage(tile, n);
      const uint32_t stage = (begun_ + n) % kStages;
      uint32_t to = shared_address(stages_ + stage * kStageBytes + kWeightsBytes);
#pragma unroll 1
      for (int row = 0; row < tile.rows.rows; ++row, to += kXPitch) {
        const unsigned char* from = of_lane(x, row) + n * kXBytes;
        // Where lanes each begin their own, that takes twice as long.
        if (is_elected()) copy_bulk(to, from, x_bytes(tile, n), barriers_.there[stage]);
      }
    }
    begun_ += tile.columns.count;
  }

 private:
  static constexpr int kWeightsBytes = weights_bytes(kFormat);
  static constexpr int kStageBytes = stage_bytes(kFormat);
  static constexpr int kWord = sizeof(float);  // the map's elements
  static constexpr int kBlockWords = static_cast<int>(packed_block_bytes(kFormat)) / kWord;

  // Of a row of x in the tile's n-th block of columns, whole pieces.
  [[nodiscard]] __device__ int x_bytes(const Tile& tile, int n) const {
    const int before = (tile.columns.first + n) * static_cast<int>(kPackedBlock);
    const int columns = static_cast<int>(a_.product.inputs) - before;
    return min(ceil_div(columns * 2, kPiece) * kPiece, kXBytes);
  }

  static __device__ const unsigned char* of_lane(const unsigned char* own, int lane) {
    const auto address = reinterpret_cast<unsigned long long>(own);
    return reinterpret_cast<const unsigned char*>(__shfl_sync(kAllLanes, address, lane));
  }

  // When the stage of the tile's n-th block of columns has been read: says what will come there,
  // and begins with the weights.
  __device__ void begin_stage(const Tile& tile, int n) {
    const uint32_t filling = begun_ + n;
    const uint32_t stage = filling % kStages;
    unsigned char* to = stages_ + stage * kStageBytes;
    wait_for_phase(barriers_.read[stage], filling / kStages % 2 ^ 1U);
    const int bytes = x_bytes(tile, n);
    uint64_t& there = barriers_.there[stage];
    if (lane_ < tile.rows.rows) {  // zeros to the end of a turn of steps
      constexpr int kTurnBytes = kTogether * kStepBytes;
      unsigned char* row = to + kWeightsBytes + lane_ * kXPitch;
      for (int at = bytes; at % kTurnBytes != 0; at += kPiece) {
        *reinterpret_cast<uint4*>(row + at) = {};
      }
    }
    if (lane_ == 0) {
      arrive_and_expect(there, kWeightsBytes + tile.rows.rows * bytes);
    } else if (lane_ < kRows) {
      arrive(there);
    }
    __syncwarp();
    if (lane_ == 0) {
      const int column = (tile.columns.first + n) * kBlockWords;
      const auto outputs = static_cast<int>(a_.product.outputs);
      if constexpr (kGated) {
        copy_box_by_eights(to, weights_, column, tile.first_channel / 2 / kEight, tile.rows.expert,
                           there);
      } else {
        copy_box(to, weights_, column, tile.rows.expert * outputs + tile.first_channel, there);
      }
    }
  }

  const CUtensorMap& weights_;
  const Arguments& a_;
  unsigned char* stages_;
  Barriers& barriers_;
  int lane_;
  uint32_t begun_ = 0;  // stages of the tiles before
};

/// A warp's sums of sixteen channels: of rows of x by eights, as mma_16x8x16() has them.
using Sums = float[kEights][4];

/// Those of `steps` steps of a block, of which the lane's first row of weights and its piece of x
/// are given, beside kUsed eights of rows.
template <WeightFormat kFormat, bool kLarge, int kUsed>
__device__ void multiply_block(const CodedStep& coded, const unsigned char* block, uint32_t x,
                               int steps, Sums& sums) {
  constexpr CodedLayout kLayout(kFormat);
  constexpr WeightFormat kCodes = codes_of(kFormat);
  constexpr int kGroupSteps = 1 << kLayout.group_shift;
  const unsigned char* lower_block = block + kEight * kLayout.block_bytes;
#pragma unroll 1
  for (int begin = 0; begin < steps; begin += kTogether) {
    CodedStep::Group upper_group;
    CodedStep::Group lower_group;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int step = begin + i;  // beyond the last one there are zeros
      if (i % kGroupSteps == 0) {
        upper_group = coded.group<kCodes, kLarge>(block, step);
        lower_group = coded.group<kCodes, kLarge>(lower_block, step);
      }
      CodedStep::Registers upper;
      CodedStep::Registers lower;
      coded.widen<kCodes, kLarge>(upper_group, block, step, upper);
      coded.widen<kCodes, kLarge>(lower_group, lower_block, step, lower);
#pragma unroll
      for (int eight = 0; eight < kUsed; ++eight) {
        uint32_t columns[4];
        load_matrices<false>(columns, x + eight * kEight * kXPitch + step * kStepBytes);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t a[4] = {upper[j][0], lower[j][0], upper[j][1], lower[j][1]};
          mma_16x8x16<__nv_bfloat16>(sums[eight], a, columns[2 * j], columns[2 * j + 1]);
        }
      }
    }
  }
}

/// Where results go: rows of a tile, and channels of an expert.
template <bool kGated, bool kGrouped>
class Finisher {
 public:
  __device__ Finisher(const Arguments& a, const Tile& tile)
      : to_(a.product.to),
        outputs_(a.product.outputs),
        tile_(tile.rows),
        first_output_(kGated ? tile.first_channel / 2 : tile.first_channel) {
    if (to_.bias != nullptr) to_.bias += tile_.expert * (kGated ? 2 : 1) * outputs_;
  }

  /// The sums of row 8 · eight + 2t + i and a warp's channels g and g + 8, of lane 4g + t.
  __device__ void finish(int warp, int eight, int i, float upper, float lower) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int in_tile = eight * kEight + lane % 4 * 2 + i;
    if (in_tile >= tile_.rows) return;
    const int row = tile_.first + in_tile;
    if constexpr (kGated) {
      const int64_t output = first_output_ + warp * kEight + lane / 4;
      if (output >= outputs_) return;
      finish_gate(to_, row, output, finished(output, upper), finished(outputs_ + output, lower));
    } else {
      const int64_t output = first_output_ + warp * kWarpChannels + lane / 4;
      if (output < outputs_) finish_product(to_, row, output, upper);
      if (output + kEight < outputs_) finish_product(to_, row, output + kEight, lower);
    }
  }

 private:
  // Of a gate's two products, which are rounded beside many rows but those of experts.
  [[nodiscard]] __device__ float finished(int64_t channel, float sum) const {
    const float value = add_bias(to_, channel, sum);
    return kGrouped ? value : to_float(from_float<__nv_bfloat16>(value));
  }

  Destination to_;
  int64_t outputs_;
  RowTile tile_;
  int64_t first_output_;
};

// A lane's sums of a block's n-th block of columns, in its shared memory.
__device__ float* sums_of_lane(float* block_sums, int n) {
  return block_sums + n * kBlockSums + static_cast<int>(threadIdx.x) / kWarp * (kWarpSums * kWarp) +
         static_cast<int>(threadIdx.x) % kWarp;
}

// Two sums of this lane of a warp: [i] of eight `eight`, and the one of the channel eight
// further, of all blocks of columns of a tile.
__device__ void add_up_blocks(float* block_sums, const Arguments& a, int cluster, int warp,
                              int eight, int i, float (&totals)[2]) {
  constexpr int kLoads = 4;  // on their way together
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int half = a.column_blocks / 2;
  float first_half[2] = {};
  const float* from = block_sums + (warp * kWarpSums + eight * 4 + i) * kWarp + lane;
  int rank = 0;
  int in_rank = 0;
#pragma unroll 1
  for (int first = 0; first < a.column_blocks; first += kLoads) {
    float more[kLoads][2];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      if (first + n >= a.column_blocks) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        more[n][j] = load_from_block(rank, from + in_rank * kBlockSums + j * 2 * kWarp);
      }
      if (++in_rank < ColumnBlocks(a.column_blocks, rank, cluster).count) continue;
      in_rank = 0;
      ++rank;
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int block = first + n;
      if (block >= a.column_blocks) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (block == half) first_half[j] = totals[j];
        totals[j] = block == 0 || block == half ? more[n][j] : __fadd_rn(totals[j], more[n][j]);
      }
    }
  }
  if (half == 0) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) totals[j] = __fadd_rn(first_half[j], totals[j]);
}

/// Makes a tile of blocks that are copied, stages from number `begun` on. By a warp that
/// multiplies.
template <WeightFormat kFormat, bool kGated, bool kGrouped>
__device__ void make_tile(const Arguments& a, const Tile& tile, uint32_t begun,
                          unsigned char* stages, Barriers& barriers) {
  constexpr CodedLayout kLayout(kFormat);
  constexpr int kStageBytes = stage_bytes(kFormat);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const CodedStep coded(kLayout, lane);
  const int eights = ceil_div(tile.rows.rows, kEight);
  const int all_steps = ceil_div(static_cast<int>(a.product.inputs), static_cast<int>(kPackedStep));
  Sums totals = {};
  float parked[kGrouped ? 1 : kMostColumnBlocks][kWarpSums];
#pragma unroll 1
  for (int n = 0; n < tile.columns.count; ++n) {
    const uint32_t filling = begun + n;
    const uint32_t stage = filling % kStages;
    const unsigned char* weights = stages + stage * kStageBytes;
    const unsigned char* upper = weights + (warp * kWarpChannels + lane / 4) * kLayout.block_bytes;
    const uint32_t x =
        shared_address(weights) + weights_bytes(kFormat) + lane % 8 * kXPitch + lane / 8 * kPiece;
    const int steps = min(all_steps - (tile.columns.first + n) * kBlockSteps, kBlockSteps);
    wait_for_phase(barriers.there[stage], filling / kStages % 2);
    Sums sums = {};
    const bool is_large = coded.has_large_scale(upper, upper + kEight * kLayout.block_bytes);
    CodedStep::with_scales<kFormat>(is_large, [&]<bool kLarge>() {
      // Where instructions of eights that do not exist are skipped, they take as long.
      if (eights > 1) {
        multiply_block<kFormat, kLarge, kEights>(coded, upper, x, steps, sums);
      } else {
        multiply_block<kFormat, kLarge, 1>(coded, upper, x, steps, sums);
      }
    });
    __syncwarp();
    if (lane == 0) arrive(barriers.read[stage]);
#pragma unroll
    for (int i = 0; i < kWarpSums; ++i) {
      const float sum = sums[i / 4][i % 4];
      if constexpr (kGrouped) {
        float& total = totals[i / 4][i % 4];
        total = n == 0 ? sum : __fadd_rn(total, sum);
      } else {
        parked[n][i] = sum;
      }
    }
  }

  const Finisher<kGated, kGrouped> finisher(a, tile);
  if constexpr (kGrouped) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        finisher.finish(warp, eight, i, totals[eight][i], totals[eight][2 + i]);
      }
    }
  } else {
    allow_next_kernel();
    auto* block_sums = reinterpret_cast<float*>(stages);
    synchronize_threads(1, kWarps * kWarp);  // stages are read
    for (int n = 0; n < tile.columns.count; ++n) {
      float* to = sums_of_lane(block_sums, n);
#pragma unroll
      for (int i = 0; i < kWarpSums; ++i) to[i * kWarp] = parked[n][i];
    }
    synchronize_cluster();
    // Two sums of a lane for each of a warp's rows.
    const int cluster = cluster_size();
    const int units = kWarps * eights * 2;
    for (int unit = rank_in_cluster() + cluster * warp; unit < units; unit += cluster * kWarps) {
      const int of_warp = unit % kWarps;
      const int eight = unit / kWarps / 2;
      const int i = unit / kWarps % 2;
      float sums[2] = {};
      add_up_blocks(block_sums, a, cluster, of_warp, eight, i, sums);
      finisher.finish(of_warp, eight, i, sums[0], sums[1]);
    }
    synchronize_cluster();  // all have read this block's
  }
}

template <WeightFormat kFormat, bool kGated, bool kGrouped>
__global__ __launch_bounds__(kThreads, kBlocks) void few_coded_kernel(
    const __grid_constant__ CUtensorMap weights, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ Barriers barriers;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x == kWarps * kWarp) {
    prefetch_map(weights);
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(barriers.there[stage], kRows);
      init_barrier(barriers.read[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  const auto wait = [] { wait_for_inputs(); };
  if (kGrouped || warp < kWarps) wait();
  if (warp == kWarps) {
    Copier<kFormat, kGated, kGrouped> copier(weights, a, stages, barriers);
    for_tiles<kGated, kGrouped>(a, [&](const Tile& tile) { copier.copy(tile, wait); });
    if constexpr (!kGrouped) {  // as often as the others
      synchronize_cluster();
      synchronize_cluster();
    }
  } else {
    uint32_t begun = 0;
    for_tiles<kGated, kGrouped>(a, [&](const Tile& tile) {
      make_tile<kFormat, kGated, kGrouped>(a, tile, begun, stages, barriers);
      begun += tile.columns.count;
    });
    if constexpr (kGrouped) allow_next_kernel();
  }
}

/// By a cluster's number of blocks, how many clusters the GPU has places for.
using ClustersAtOnce = std::array<int, kMostCluster + 1>;

template <typename Kernel>
ClustersAtOnce clusters_at_once(Kernel* kernel, size_t shared_bytes) {
  ClustersAtOnce at_once{};
  for (unsigned blocks = 1; blocks < at_once.size(); ++blocks) {
    at_once.at(blocks) = active_clusters(kernel, {blocks, kThreads, shared_bytes, blocks});
  }
  return at_once;
}

/// Blocks of a cluster: as many as there are places for, as few as are as fast, and none with more
/// columns than it can keep sums of.
int choose_cluster(int tiles, int column_blocks, const ClustersAtOnce& at_once) {
  const int least = ceil_div(column_blocks, kMostColumnBlocks);
  int cluster = std::min(kMostCluster, column_blocks);
  while (cluster > least && at_once.at(static_cast<size_t>(cluster)) < tiles) --cluster;
  return ceil_div(column_blocks, ceil_div(column_blocks, cluster));
}

template <WeightFormat kFormat, bool kGated, bool kGrouped>
void launch(const Arguments& a, const Weight& weight, const Queue& queue) {
  const auto kernel = few_coded_kernel<kFormat, kGated, kGrouped>;
  constexpr size_t kBytes = kStages * stage_bytes(kFormat);
  allow_shared_memory(kernel, kBytes);
  const Product& p = a.product;
  // In words, of which a box may have enough.
  const auto words = static_cast<int64_t>(weight.row_bytes() / sizeof(float));
  const BoxedMatrix matrix{weight.data,
                           DType::f32,
                           weight.rows,
                           words,
                           words,
                           kChannels,
                           static_cast<int32_t>(packed_block_bytes(kFormat))};
  const CUtensorMap map = kGated ? describe_by_eights(matrix, p.outputs) : describe(matrix);
  const int tiles = ceil_div(p.outputs, kGated ? kChannels / 2 : kChannels);
  static const ClustersAtOnce at_once = clusters_at_once(kernel, kBytes);  // GPUs are alike
  const int cluster = kGrouped ? 1 : choose_cluster(tiles, a.column_blocks, at_once);
  const int blocks = kGrouped ? std::min(tiles * a.tiles.max_tiles, at_once[1]) : tiles * cluster;
  queue.launch("multiplying matrices", kernel,
               {static_cast<unsigned>(blocks), kThreads, kBytes, static_cast<unsigned>(cluster)},
               map, a);
}

template <WeightFormat kFormat>
void launch(const Arguments& a, const Weight& weight, bool gated, const Queue& queue) {
  if (a.tiles.tiles != nullptr) {
    gated ? launch<kFormat, true, true>(a, weight, queue)
          : launch<kFormat, false, true>(a, weight, queue);
  } else {
    gated ? launch<kFormat, true, false>(a, weight, queue)
          : launch<kFormat, false, false>(a, weight, queue);
  }
}

}  // namespace

bool few_codes_fit(const Weight& weight) {
  constexpr int kMost = kMostCluster * kMostColumnBlocks;
  return is_coded(weight.format) && weight.format != WeightFormat::fp8 &&
         weight.cols <= kMost * kPackedBlock;
}

void few_coded_product(const Product& product, const Weight& weight, bool gated,
                       const RowTiles& tiles, const Queue& queue) {
  const Arguments arguments{
      .product = product,
      .tiles = tiles,
      .column_blocks = static_cast<int>(ceil_div(product.inputs, kPackedBlock))};
  switch (weight.format) {
    case WeightFormat::mxfp4:
      return launch<WeightFormat::mxfp4>(arguments, weight, gated, queue);
    case WeightFormat::nf4:
      return launch<WeightFormat::nf4>(arguments, weight, gated, queue);
    case WeightFormat::int4_g32:
      return launch<WeightFormat::int4_g32>(arguments, weight, gated, queue);
    case WeightFormat::int4_g64:
      return launch<WeightFormat::int4_g64>(arguments, weight, gated, queue);
    case WeightFormat::int4_g128:
      return launch<WeightFormat::int4_g128>(arguments, weight, gated, queue);
    default:
      throw std::logic_error("few_coded_product: not a format of codes that are widened");
  }
}

}  // namespace faststream
