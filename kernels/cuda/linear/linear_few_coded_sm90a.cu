// Products of a few rows beside codes of floats (kernels/cuda/coded.cuh), on Hopper: each warp
// widens the codes of its own sixteen channels in registers. Of that there is least: it takes about
// 20 instructions for eight codes. So sixteen warps are on a multiprocessor, where others of a
// scheduler work while one waits.
//
// A block makes a tile of channels, in steps of a block of 512 columns, which asynchronous copies
// bring to shared memory while the one before is multiplied. Rows of x that a tile does not have
// are neither copied nor stored. Where there are fewer tiles than places for blocks, a cluster of
// blocks divides the columns of one, and each makes the results of some of its channels.
//
// Of 512 columns each sum is a chain from the first to the last. These are added in order, in each
// half of the inputs, of experts all together, as warpgroups do it beside many rows
// (product_consumer_sm90a.cuh) and the step's kernel beside one.
#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/tiling.h"
#include "kernels/cuda/mma.cuh"
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
constexpr int kXPieces = kBlockSteps * kStepBytes / kPiece;    // of a row of x in a stage
constexpr int kMostCluster = 8;
constexpr int kTogether = 4;  // steps of a turn, a multiple of those of a group

/// The format that CodedStep knows another by.
constexpr WeightFormat codes_of(WeightFormat format) {
  return format == WeightFormat::int4_g32 || format == WeightFormat::int4_g64
             ? WeightFormat::int4_g128
             : format;
}

/// Bytes from one row of so many to the next in shared memory: an odd number of pieces, so that
/// eight rows' are in different banks.
constexpr int pitch_of(int bytes) { return (bytes / kPiece | 1) * kPiece; }
constexpr int kXPitch = pitch_of(kXPieces * kPiece);

constexpr int kRows = kFewCodedRows;  // of x, of a tile
constexpr int kEights = kRows / kEight;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocks = 2;  // on a multiprocessor
constexpr int kChannels = kWarps * kWarpChannels;
constexpr int kWarpRows = kRows / kWarps;  // that a warp copies
constexpr int kWarpSums = kEights * 4;     // of a lane
constexpr int kBlockSums = kWarps * kWarpSums * kWarp;

/// Blocks of columns that one of a cluster's blocks has at most: in the end their sums are where
/// its stages were.
constexpr int kMostColumnBlocks = 12;

constexpr int stage_bytes(WeightFormat format) {
  return kChannels * pitch_of(static_cast<int>(packed_block_bytes(format))) + kRows * kXPitch;
}
static_assert(kMostColumnBlocks * kBlockSums * sizeof(float) <=
              kStages * stage_bytes(WeightFormat::mxfp4));

struct Arguments {
  Product product;
  RowTiles tiles;
  int64_t row_bytes = 0;
  int column_blocks = 0;
};

/// What a warp copies: the weights of its own channels, and some rows of x, a block of columns
/// after the other. Of little code, which runs once.
template <WeightFormat kFormat, bool kGated>
class WarpCopier {
 public:
  __device__ WarpCopier(const Arguments& a, const RowTile& tile, int64_t first_channel,
                        int first_column_block)
      : row_bytes_(a.row_bytes), rows_(tile.rows), warp_(threadIdx.x / kWarp) {
    const Product& p = a.product;
    lane_ = static_cast<int>(threadIdx.x) % kWarp;
    // Of the lower eight rows a half of the warp, of the upper ones the other half. Outputs come in
    // eights; those past the end repeat the last ones.
    const int half = lane_ / kHalf;
    const int64_t last = p.outputs - kEight;
    int64_t channel = first_channel + warp_ * kWarpChannels + half * kEight;
    if constexpr (kGated) {
      channel = half * p.outputs + min(first_channel / 2 + warp_ * kEight, last);
    } else {
      channel = min(channel, last);
    }
    channel += tile.expert * (kGated ? 2 : 1) * p.outputs;
    const int before = first_column_block * kBlockBytes;
    weights_ = static_cast<const unsigned char*>(p.weight) + channel * row_bytes_ + before;
    bytes_left_ = static_cast<int>(row_bytes_) - before;
    inputs_left_ = static_cast<int>(p.inputs) - first_column_block * static_cast<int>(kPackedBlock);
  }

  /// Of the next block.
  __device__ void copy_weights(uint32_t stage) {
    stage += (warp_ * kWarpChannels + lane_ / kHalf * kEight) * kPitch;
    const int piece = lane_ % kHalf * kPiece;
    const unsigned char* from = weights_ + piece;
    const bool wanted = piece < bytes_left_;
#pragma unroll
    for (int row = 0; row < kEight; ++row) {
      copy_async(stage + row * kPitch + piece, from, wanted);
      from += row_bytes_;
    }
    // What is behind the sixteen pieces of each row, a lane's of row lane % 8.
    constexpr int kRest = kBlockBytes / kPiece - kHalf;
    from = weights_ + lane_ % kEight * row_bytes_;
#pragma unroll
    for (int i = 0; i < kRest; i += 2) {
      const int at = (kHalf + i + lane_ % kHalf / kEight) * kPiece;
      if (at < kBlockBytes) {
        copy_async(stage + lane_ % kEight * kPitch + at, from + at, at < bytes_left_);
      }
    }
    weights_ += kBlockBytes;
    bytes_left_ -= kBlockBytes;
  }

  /// When there are inputs.
  __device__ void find_rows(const Arguments& a, const RowTile& tile, int first_column_block) {
    const auto* x = static_cast<const unsigned char*>(a.product.x) +
                    (first_column_block * kXPieces + lane_) * kPiece;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int at = tile.first + min(warp_ + i * kWarps, rows_ - 1);
      const int64_t row = a.tiles.x_rows != nullptr ? a.tiles.x_rows[at] : at;
      x_[i] = x + row * a.product.x_stride * 2;
    }
  }
  __device__ void copy_x(uint32_t stage) {
    stage += kChannels * kPitch + warp_ * kXPitch + lane_ * kPiece;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      if (warp_ + i * kWarps < rows_) {
#pragma unroll
        for (int part = 0; part < kXPieces / kWarp; ++part) {
          const bool exists = (part * kWarp + lane_) * (kPiece / 2) < inputs_left_;
          copy_async(stage + i * kWarps * kXPitch + part * kWarp * kPiece,
                     exists ? x_[i] + part * kWarp * kPiece : x_[i], exists);
        }
        x_[i] += kXPieces * kPiece;
      }
    }
    inputs_left_ -= static_cast<int>(kPackedBlock);
    close_copies();
  }

 private:
  static constexpr int kBlockBytes = static_cast<int>(packed_block_bytes(kFormat));
  static constexpr int kPitch = pitch_of(kBlockBytes);
  static constexpr int kHalf = kWarp / 2;

  const unsigned char* weights_;
  const unsigned char* x_[kWarpRows];
  int64_t row_bytes_;
  int bytes_left_;
  int inputs_left_;
  int rows_;
  int warp_;
  int lane_;
};

/// A warp's sums of sixteen channels: of rows of x by eights, as mma_16x8x16() has them.
using Sums = float[kEights][4];

/// Those of `steps` steps of a block, of which the lane's first row of weights and its piece of x
/// are given.
template <WeightFormat kFormat, bool kLarge>
__device__ void multiply_block(const CodedStep& coded, const unsigned char* block, uint32_t x,
                               int steps, int eights, Sums& sums) {
  constexpr CodedLayout kLayout(kFormat);
  constexpr WeightFormat kCodes = codes_of(kFormat);
  constexpr int kGroupSteps = 1 << kLayout.group_shift;
  const unsigned char* lower_block = block + kEight * pitch_of(kLayout.block_bytes);
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
      for (int eight = 0; eight < kEights; ++eight) {
        if (eight > 0 && eight >= eights) continue;
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

/// The blocks of columns of one block of a cluster.
struct ColumnBlocks {
  int first;
  int count;

  __device__ ColumnBlocks(int all, int rank, int cluster)
      : first(rank * all / cluster), count((rank + 1) * all / cluster - first) {}
};

/// Where results go: rows of a tile, and channels of an expert.
template <bool kGated, bool kGrouped>
class Finisher {
 public:
  __device__ Finisher(const Arguments& a, const RowTile& tile, int first_channel)
      : to_(a.product.to),
        outputs_(a.product.outputs),
        tile_(tile),
        first_output_(kGated ? first_channel / 2 : first_channel) {
    if (to_.bias != nullptr) to_.bias += tile.expert * (kGated ? 2 : 1) * outputs_;
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
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int half = a.column_blocks / 2;
  float first_half[2] = {};
  const float* from = block_sums + (warp * kWarpSums + eight * 4 + i) * kWarp + lane;
  int block = 0;
  for (int rank = 0; rank < cluster; ++rank) {
    const int count = ColumnBlocks(a.column_blocks, rank, cluster).count;
#pragma unroll 4
    for (int n = 0; n < count; ++n, ++block) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float more = load_from_block(rank, from + n * kBlockSums + j * 2 * kWarp);
        if (block == half) first_half[j] = totals[j];
        totals[j] = block == 0 || block == half ? more : __fadd_rn(totals[j], more);
      }
    }
  }
  if (half == 0) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) totals[j] = __fadd_rn(first_half[j], totals[j]);
}

template <WeightFormat kFormat, bool kGated, bool kGrouped>
__global__ __launch_bounds__(kThreads,
                             kBlocks) void few_coded_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr CodedLayout kLayout(kFormat);
  constexpr int kPitch = pitch_of(kLayout.block_bytes);
  constexpr int kStageBytes = stage_bytes(kFormat);
  const Product& p = a.product;
  const int cluster = kGrouped ? 1 : cluster_size();
  const int rank = kGrouped ? 0 : rank_in_cluster();
  const int first_channel = static_cast<int>(blockIdx.x) / cluster * kChannels;
  RowTile tile{.rows = p.rows};
  // After the first weights are asked for, but of experts: which these are is an input.
  const auto wait = [] { wait_for_inputs(); };
  if constexpr (kGrouped) {
    wait();
    if (static_cast<int>(blockIdx.y) >= *a.tiles.n_tiles) return;
    tile = a.tiles.tiles[blockIdx.y];
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const CodedStep coded(kLayout, lane);
  const ColumnBlocks own(a.column_blocks, rank, cluster);
  const uint32_t first_stage = shared_address(memory);
  WarpCopier<kFormat, kGated> copier(a, tile, first_channel, own.first);
  copier.copy_weights(first_stage);
  if constexpr (!kGrouped) wait();
  copier.find_rows(a, tile, own.first);
  copier.copy_x(first_stage);

  const int eights = ceil_div(tile.rows, kEight);
  const int all_steps = ceil_div(static_cast<int>(p.inputs), static_cast<int>(kPackedStep));
  Sums totals = {};
  float parked[kGrouped ? 1 : kMostColumnBlocks][kWarpSums];
#pragma unroll 1
  for (int n = 0; n < own.count; ++n) {
    const int stage = n % kStages * kStageBytes;
    wait_for_copies<0>();
    __syncthreads();  // all copies of the block are there, and all have read the one before
    if (n + 1 < own.count) {
      const uint32_t next = first_stage + (kStageBytes - stage);
      copier.copy_weights(next);
      copier.copy_x(next);
    }
    Sums sums = {};
    const unsigned char* upper = memory + stage + (warp * kWarpChannels + lane / 4) * kPitch;
    const uint32_t x =
        first_stage + stage + kChannels * kPitch + lane % 8 * kXPitch + lane / 8 * kPiece;
    const int steps = min(all_steps - (own.first + n) * kBlockSteps, kBlockSteps);
    const bool is_large = coded.has_large_scale(upper, upper + kEight * kPitch);
    CodedStep::with_scales<kFormat>(is_large, [&]<bool kLarge>() {
      multiply_block<kFormat, kLarge>(coded, upper, x, steps, eights, sums);
    });
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
  allow_next_kernel();

  const Finisher<kGated, kGrouped> finisher(a, tile, first_channel);
  if constexpr (kGrouped) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        finisher.finish(warp, eight, i, totals[eight][i], totals[eight][2 + i]);
      }
    }
  } else {
    auto* block_sums = reinterpret_cast<float*>(memory);
    __syncthreads();  // stages are read
    for (int n = 0; n < own.count; ++n) {
      float* to = sums_of_lane(block_sums, n);
#pragma unroll
      for (int i = 0; i < kWarpSums; ++i) to[i * kWarp] = parked[n][i];
    }
    synchronize_cluster();
    // Two sums of a lane for each of a warp's rows.
    const int units = kWarps * eights * 2;
    for (int unit = rank + cluster * warp; unit < units; unit += cluster * kWarps) {
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

/// Blocks of a cluster: as many as there are places for, none with more columns than it can keep
/// sums of, and none without.
int choose_cluster(int tiles, int column_blocks) {
  const int places = kBlocks * gpu_attribute(cudaDevAttrMultiProcessorCount);
  const int least = ceil_div(column_blocks, kMostColumnBlocks);
  const int most = std::clamp(places / tiles, least, kMostCluster);
  return ceil_div(column_blocks, ceil_div(column_blocks, std::min(most, column_blocks)));
}

template <WeightFormat kFormat, bool kGated, bool kGrouped>
void launch(const Arguments& a, const Queue& queue) {
  const auto kernel = few_coded_kernel<kFormat, kGated, kGrouped>;
  constexpr size_t kBytes = kStages * stage_bytes(kFormat);
  allow_shared_memory(kernel, kBytes);
  const Product& p = a.product;
  const int tiles = ceil_div(p.outputs, kGated ? kChannels / 2 : kChannels);
  const int row_tiles = kGrouped ? a.tiles.max_tiles : 1;
  const int cluster = kGrouped ? 1 : choose_cluster(tiles, a.column_blocks);
  queue.launch("multiplying matrices", kernel,
               {dim3(tiles * cluster, row_tiles), kThreads, kBytes, static_cast<unsigned>(cluster)},
               a);
}

template <WeightFormat kFormat>
void launch(const Arguments& a, bool gated, const Queue& queue) {
  if (a.tiles.tiles != nullptr) {
    gated ? launch<kFormat, true, true>(a, queue) : launch<kFormat, false, true>(a, queue);
  } else {
    gated ? launch<kFormat, true, false>(a, queue) : launch<kFormat, false, false>(a, queue);
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
      .row_bytes = weight.row_bytes(),
      .column_blocks = static_cast<int>(ceil_div(product.inputs, kPackedBlock))};
  switch (weight.format) {
    case WeightFormat::mxfp4:
      return launch<WeightFormat::mxfp4>(arguments, gated, queue);
    case WeightFormat::nf4:
      return launch<WeightFormat::nf4>(arguments, gated, queue);
    case WeightFormat::int4_g32:
      return launch<WeightFormat::int4_g32>(arguments, gated, queue);
    case WeightFormat::int4_g64:
      return launch<WeightFormat::int4_g64>(arguments, gated, queue);
    case WeightFormat::int4_g128:
      return launch<WeightFormat::int4_g128>(arguments, gated, queue);
    default:
      throw std::logic_error("few_coded_product: not a format of codes that are widened");
  }
}

}  // namespace faststream
