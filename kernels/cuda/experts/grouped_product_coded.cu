// Products of experts with a few rows each beside codes of floats (kernels/cuda/coded.cuh), on the
// tensor cores, for which each warp widens the codes of its own channels in registers. What that
// takes is what there is least of: about 20 instructions for eight codes, so that two blocks of
// eight warps are on a multiprocessor, where four warps of a scheduler hide what each waits for.
//
// A block makes a tile of one expert's rows and 128 channels, in steps of a block of 512 columns,
// which asynchronous copies bring to shared memory while the block before is multiplied. Rows of x
// that a tile does not have are neither copied nor stored.
//
// Of a block's columns each sum is a chain from the first to the last, and the blocks' sums are
// added in order, as warpgroups do it beside many rows (linear/product_consumer_sm90a.cuh) and the
// step's kernel beside one.
#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpChannels = 16;
constexpr int kChannels = kWarps * kWarpChannels;
constexpr int kEight = 8;  // rows of x that an instruction takes
constexpr int kRows = kFewTileRows;
constexpr int kStages = 2;
constexpr int kPiece = 16;  // bytes that a copy takes
constexpr int kBlockSteps = static_cast<int>(kPackedBlock / kPackedStep);
constexpr int kStepBytes = static_cast<int>(kPackedStep) * 2;  // of x
constexpr int kXPieces = kBlockSteps * kStepBytes / kPiece;    // of a row
constexpr int kXCopied = kThreads / kXPieces;                  // rows at a time
constexpr int kXCopies = kRows / kXCopied;

/// Bytes from one row of so many to the next in shared memory: an odd number of pieces, so that
/// eight rows' are in different banks.
constexpr int pitch_of(int bytes) { return (bytes / kPiece | 1) * kPiece; }
constexpr int kXPitch = pitch_of(kXPieces * kPiece);

constexpr int stage_bytes(const CodedLayout& layout) {
  return kChannels * pitch_of(layout.block_bytes) + kRows * kXPitch;
}

constexpr int kMostBlockBytes = static_cast<int>(packed_block_bytes(WeightFormat::int4_g32));
constexpr int kMostCopies = ceil_div(kChannels * kMostBlockBytes / kPiece, kThreads);

/// Copies a tile's weights and rows of x, a block of columns after the other.
template <bool kGated>
class TileCopier {
 public:
  __device__ TileCopier(const GroupedProduct& p, const RowTile& tile, const CodedLayout& layout,
                        int64_t row_bytes)
      : block_bytes_(layout.block_bytes), rows_(tile.rows), inputs_left_(p.weight.cols) {
    const int thread = static_cast<int>(threadIdx.x);
    const int pieces = block_bytes_ / kPiece;
    const int64_t first_channel = tile.expert * (kGated ? 2 : 1) * p.outputs;
    weights_ = static_cast<const unsigned char*>(p.weight.data) + first_channel * row_bytes;
    row_bytes_left_ = static_cast<int>(row_bytes);
    copies_ = ceil_div(kChannels * pieces - thread, kThreads);
#pragma unroll
    for (int i = 0; i < kMostCopies; ++i) {
      const int at = i * kThreads + thread;
      const int row = at / pieces;
      in_block_[i] = at % pieces * kPiece;
      offset_[i] = channel_of(p, row) * row_bytes + in_block_[i];
      to_[i] = row * pitch_of(block_bytes_) + in_block_[i];
    }
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int at = tile.first + min(thread / kXPieces + i * kXCopied, tile.rows - 1);
      const int64_t row = p.x_rows != nullptr ? p.x_rows[at] : at;
      x_[i] = static_cast<const unsigned char*>(p.x) + (row * p.x_stride) * 2 +
              thread % kXPieces * kPiece;
    }
  }

  /// The next block, of which nothing is left when there are no more.
  __device__ void copy(uint32_t stage) {
    if (row_bytes_left_ > 0) {
#pragma unroll
      for (int i = 0; i < kMostCopies; ++i) {
        if (i < copies_) {
          copy_async(stage + to_[i], weights_ + offset_[i], in_block_[i] < row_bytes_left_);
        }
      }
      const int thread = static_cast<int>(threadIdx.x);
      const bool exists = thread % kXPieces * (kPiece / 2) < inputs_left_;
      stage += kChannels * pitch_of(block_bytes_) + thread % kXPieces * kPiece;
#pragma unroll
      for (int i = 0; i < kXCopies; ++i) {
        const int row = thread / kXPieces + i * kXCopied;
        if (row < rows_) copy_async(stage + row * kXPitch, x_[i], exists);
        if (exists) x_[i] += kXPieces * kPiece;
      }
      weights_ += block_bytes_;
      row_bytes_left_ -= block_bytes_;
      inputs_left_ -= static_cast<int>(kPackedBlock);
    }
    close_copies();
  }

 private:
  // Row `row` of the tile, of the expert's channels. Those past the end repeat the last one.
  static __device__ int64_t channel_of(const GroupedProduct& p, int row) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kChannels;
    if (!kGated) return min(first + row, p.outputs - 1);
    const int64_t output = first / 2 + row / kWarpChannels * kEight + row % kEight;
    return row % kWarpChannels / kEight * p.outputs + min(output, p.outputs - 1);
  }

  const unsigned char* weights_;
  const unsigned char* x_[kXCopies];
  int64_t offset_[kMostCopies];
  int in_block_[kMostCopies];
  int to_[kMostCopies];
  int copies_;
  int block_bytes_;
  int rows_;
  int row_bytes_left_;
  int inputs_left_;
};

/// A warp's sums of sixteen channels: of rows of x by eights, as mma_16x8x16() has them.
using Sums = float[kRows / kEight][4];

/// Those of `steps` steps of a block, of which the lane's first row of weights and its piece of x
/// are given.
template <WeightFormat kFormat, bool kLarge>
__device__ void multiply_block(const CodedStep& coded, const unsigned char* block, uint32_t x,
                               int steps, bool more_than_eight, Sums& sums) {
  const CodedLayout layout = layout_of<kFormat>(coded.layout());
  const unsigned char* lower_block = block + kEight * pitch_of(layout.block_bytes);
  const int group_steps = 1 << layout.group_shift;
#pragma unroll 1
  for (int begin = 0; begin < steps; begin += 4) {
    CodedStep::Group upper_group;
    CodedStep::Group lower_group;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int step = begin + i;  // beyond the last one there are zeros
      if ((step & (group_steps - 1)) == 0) {
        upper_group = coded.group<kFormat, kLarge>(block, step);
        lower_group = coded.group<kFormat, kLarge>(lower_block, step);
      }
      CodedStep::Registers upper;
      CodedStep::Registers lower;
      coded.widen<kFormat, kLarge>(upper_group, block, step, upper);
      coded.widen<kFormat, kLarge>(lower_group, lower_block, step, lower);
      const auto multiply = [&](int eight) {
        uint32_t columns[4];
        load_matrices<false>(columns, x + eight * kEight * kXPitch + step * kStepBytes);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t a[4] = {upper[j][0], lower[j][0], upper[j][1], lower[j][1]};
          mma_16x8x16<__nv_bfloat16>(sums[eight], a, columns[2 * j], columns[2 * j + 1]);
        }
      };
      multiply(0);
      if (more_than_eight) multiply(1);
    }
  }
}

template <WeightFormat kFormat, bool kGated>
__global__ __launch_bounds__(kThreads, 2) void coded_product_kernel(GroupedProduct p,
                                                                    CodedLayout given,
                                                                    int64_t row_bytes) {
  extern __shared__ __align__(16) unsigned char memory[];
  wait_for_inputs();
  if (static_cast<int>(blockIdx.y) >= *p.n_tiles) return;
  const RowTile tile = p.tiles[blockIdx.y];
  const CodedLayout layout = layout_of<kFormat>(given);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pitch = pitch_of(layout.block_bytes);
  const CodedStep coded(layout, lane);
  TileCopier<kGated> copier(p, tile, layout, row_bytes);
  const uint32_t first_stage = shared_address(memory);
  copier.copy(first_stage);

  Sums totals = {};
  const int all_steps = ceil_div(static_cast<int>(p.weight.cols), static_cast<int>(kPackedStep));
#pragma unroll 1
  for (int done = 0; done < all_steps; done += kBlockSteps) {
    const int stage = done / kBlockSteps % kStages * stage_bytes(layout);
    wait_for_copies<0>();
    __syncthreads();  // all copies of the block are there, and all have read the one before
    copier.copy(first_stage + (stage_bytes(layout) - stage));
    Sums sums = {};
    const unsigned char* upper = memory + stage + (warp * kWarpChannels + lane / 4) * pitch;
    const uint32_t x =
        first_stage + stage + kChannels * pitch + lane % 8 * kXPitch + lane / 8 * kPiece;
    const int steps = min(all_steps - done, kBlockSteps);
    const bool is_large = coded.has_large_scale(upper, upper + kEight * pitch);
    CodedStep::with_scales<kFormat>(is_large, [&]<bool kLarge>() {
      multiply_block<kFormat, kLarge>(coded, upper, x, steps, tile.rows > kEight, sums);
    });
#pragma unroll
    for (int eight = 0; eight < kRows / kEight; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& total = totals[eight][i];
        total = done == 0 ? sums[eight][i] : __fadd_rn(total, sums[eight][i]);
      }
    }
  }
  allow_next_kernel();

  Destination to = p.to;
  if (to.bias != nullptr) to.bias += tile.expert * (kGated ? 2 : 1) * p.outputs;
  const int64_t first_output =
      static_cast<int64_t>(blockIdx.x) * (kGated ? kChannels / 2 : kChannels);
#pragma unroll
  for (int eight = 0; eight < kRows / kEight; ++eight) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_tile = eight * kEight + lane % 4 * 2 + i;
      if (in_tile >= tile.rows) continue;
      const int row = tile.first + in_tile;
      if constexpr (kGated) {
        const int64_t output = first_output + warp * kEight + lane / 4;
        if (output >= p.outputs) continue;
        finish_gate(to, row, output, add_bias(to, output, totals[eight][i]),
                    add_bias(to, p.outputs + output, totals[eight][2 + i]));
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t output = first_output + warp * kWarpChannels + half * kEight + lane / 4;
          if (output < p.outputs) finish_product(to, row, output, totals[eight][2 * half + i]);
        }
      }
    }
  }
}

template <WeightFormat kFormat, bool kGated>
void launch(const GroupedProduct& p, const Queue& queue) {
  const CodedLayout layout(p.weight.format);
  const int shared_bytes = kStages * stage_bytes(layout);
  const auto kernel = coded_product_kernel<kFormat, kGated>;
  allow_shared_memory(kernel, kStages * stage_bytes(CodedLayout(WeightFormat::int4_g32)));
  const dim3 grid(ceil_div(p.outputs, kGated ? kChannels / 2 : kChannels), p.max_tiles);
  queue.launch("multiplying by experts", kernel,
               {grid, kThreads, static_cast<size_t>(shared_bytes)}, p, layout,
               p.weight.row_bytes());
}

template <WeightFormat kFormat>
void launch(const GroupedProduct& p, const Queue& queue) {
  p.gated ? launch<kFormat, true>(p, queue) : launch<kFormat, false>(p, queue);
}

}  // namespace

bool few_codes_fit(const Weight& weight) {
  return is_coded(weight.format) && weight.format != WeightFormat::fp8;
}

void grouped_product_coded(const GroupedProduct& product, const Queue& queue) {
  if (product.tile_rows > kRows) {
    throw std::logic_error("grouped_product_coded: tiles have more rows than a kernel takes");
  }
  switch (product.weight.format) {
    case WeightFormat::mxfp4:
      return launch<WeightFormat::mxfp4>(product, queue);
    case WeightFormat::nf4:
      return launch<WeightFormat::nf4>(product, queue);
    default:
      return launch<WeightFormat::int4_g128>(product, queue);
  }
}

}  // namespace faststream
