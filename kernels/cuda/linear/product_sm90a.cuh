// Products of many rows on Hopper's tensor cores, of 16-bit or int8 rows and weights. One warp
// copies tiles of both into shared memory ahead of two warpgroups, each of which has the sums of 64
// channels (rows of the weight) and all rows of the tile in its registers. Blocks stay, one a
// multiprocessor, and go from tile to tile, so that the copies for the next run while one is
// finished.
//
// The weight is the left operand: its 128 rows of a tile are read once, beside as many rows of x as
// there are, a multiple of 32 up to 256, so that few rows cost little more than reading the
// weights. Where there are fewer tiles than multiprocessors, two blocks divide the inputs of a
// tile, and each adds and finishes half of the rows: integer sums do not depend on how they are
// divided. tiling.h chooses.
//
// Sums are finished in registers, and results go through shared memory in bulk copies, which the L2
// cache adds to the residual stream: no thread waits for memory. (Beside full copies ahead, a load
// takes 1 us and more.)
//
// Clusters of two blocks that share rows of x ("multicast") read a third less from the L2 cache,
// but their steps took 1.85 times as many cycles, 1,850 instead of 1,010, for int8 and bf16 alike,
// and with 128 rows of x 2.5 times as many.
//
// Packed weights come in blocks of 512 columns as they are stored, rows one behind the other, and x
// beside them in stages of its own; the warpgroups widen them to x's type in the registers that the
// tensor cores read: int4 to the int8 matrix that it is, codes to the bf16 of their floats. Codes'
// products are summed block by block, each a chain, and the blocks' sums in order: so other kernels
// can have several warps make a sum (step_kernel/). Codes of E4M3 are multiplied as they are, by
// rows that are rounded to it, group by group of columns: chains of their own, which have a scale
// each. Many rows go at the pace of the L2 cache, so boxes of these codes begin where lines of
// memory do (CudaBackend::arrange()).
//
// 16-bit sums are chains of 16 inputs each, in order, as those of linear_in_order.cu and cuBLASLt.
// For files that are compiled for sm_90a.
#pragma once

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/linear/product_consumer_sm90a.cuh"
#include "kernels/cuda/tensor_map.h"

namespace faststream {

namespace {

/// The weights of a step for a tile: columns from `column` on.
template <typename K>
__device__ void copy_weights(const Arguments& a, const Maps& maps, const Tile& tile, int column,
                             std::byte* to, uint64_t& there) {
  const auto copy = [&](auto... policy) {
    if constexpr (K::kGated) {
      copy_box_by_eights(to, maps.weight, column, tile.first_output / 8, tile.expert, there,
                         policy...);
    } else {
      const int before = K::kGrouped ? tile.expert * static_cast<int>(a.product.outputs) : 0;
      copy_box(to, maps.weight, column, before + tile.first_output, there, policy...);
    }
  };
  if constexpr (K::kReadsOnce) {
    copy(evict_first_policy());
  } else {
    copy();
  }
}

/// Of rows fewer than a whole tile's no more is copied than there is: a row that does not exist
/// takes a copy 5 ns, and a step would wait for it (404 rows, 28,672 outputs and 4,096 inputs:
/// 161 us, 512 rows 113).
template <typename K>
__device__ void copy_tiles(const Arguments& a, const Maps& maps, Shared& shared) {
  const Steps steps = steps_of_block(a);
  Place weights_at;
  Place x_at;
  bool first = !K::kGrouped;
  for_tiles<K>(a, [&](const Tile& tile) {
    const bool is_whole = tile.rows == a.tiling.rows;
    const CUtensorMap& x_box = is_whole ? maps.x : maps.x_part;
    const int box_rows = is_whole ? tile.rows : kPartRows;
    const int rows = ceil_div(tile.rows, box_rows) * box_rows;
    const int bytes = kWeightsBytes + rows * kBlockRowBytes;
    const auto copy_own_weights = [&](int part) {
      uint64_t& there = shared.there[weights_at.stage];
      wait_for_phase(shared.done[weights_at.stage], weights_at.parity ^ 1U);
      arrive_and_expect(there, bytes);
      std::byte* to = shared.stages + weights_at.stage * a.stage_bytes;
      copy_weights<K>(a, maps, tile, weights_column<K>(part), to, there);
      weights_at.advance(a.n_stages);
    };
    const auto copy_x = [&](int part) {
      uint64_t& there = shared.there[x_at.stage];
      std::byte* to = shared.stages + x_at.stage * a.stage_bytes + kWeightsBytes;
#pragma unroll 1
      for (int row = 0; row < rows; row += box_rows) {
        copy_box(to + row * kBlockRowBytes, x_box, part * K::kXColumns, tile.first_row + row,
                 there);
      }
      x_at.advance(a.n_stages);
    };
    int part = steps.first * K::kStepParts;
    const int end = part + steps.count * K::kStepParts;
    if (first) {  // weights are there before the inputs
      const int ahead = min(end, part + a.n_stages);
#pragma unroll 1
      for (int i = part; i < ahead; ++i) copy_own_weights(i);
      wait_for_inputs();
#pragma unroll 1
      for (; part < ahead; ++part) copy_x(part);
      first = false;
    }
#pragma unroll 1
    for (; part < end; ++part) {
      copy_own_weights(part);
      copy_x(part);
    }
  });
}

/// The same of packed weights, by a thread, and of x beside them by another: each as far ahead as
/// it has stages.
template <typename K>
__device__ void copy_packed_weights(const Arguments& a, const Maps& maps, Shared& shared) {
  const Steps steps = steps_of_block(a);
  Place at;
  for_tiles<K>(a, [&](const Tile& tile) {
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step) {
      uint64_t& there = shared.weights_there[at.stage];
      wait_for_phase(shared.weights_done[at.stage], at.parity ^ 1U);
      arrive_and_expect(there, packed_stage_bytes<K>(a));
      std::byte* to = shared.stages + at.stage * packed_stage_bytes<K>(a);
      const int column = (steps.first + step) * (packed_pitch<K>(a) / kPackedWord);
      copy_weights<K>(a, maps, tile, column, to, there);
      at.advance(a.n_weight_stages);
    }
  });
}
template <typename K>
__device__ void copy_rows(const Arguments& a, const Maps& maps, Shared& shared) {
  const Steps steps = steps_of_block(a);
  std::byte* stages = shared.stages + a.n_weight_stages * packed_stage_bytes<K>(a);
  Place at;
  for_tiles<K>(a, [&](const Tile& tile) {
    const bool is_whole = tile.rows == a.tiling.rows;
    const CUtensorMap& box = is_whole ? maps.x : maps.x_part;
    const int box_rows = is_whole ? tile.rows : kPartRows;
    const int rows = ceil_div(tile.rows, box_rows) * box_rows;
    const int first = steps.first * K::kStepParts;
#pragma unroll 1
    for (int part = first; part < first + steps.count * K::kStepParts; ++part) {
      uint64_t& there = shared.there[at.stage];
      wait_for_phase(shared.done[at.stage], at.parity ^ 1U);
      arrive_and_expect(there, rows * kBlockRowBytes);
      std::byte* to = stages + at.stage * a.stage_bytes;
#pragma unroll 1
      for (int row = 0; row < rows; row += box_rows) {
        copy_box(to + row * kBlockRowBytes, box, part * K::kXColumns, tile.first_row + row, there);
      }
      at.advance(a.n_stages);
    }
  });
}

template <typename K>
__global__ __launch_bounds__(kThreads, 1) void product_kernel(const __grid_constant__ Maps maps,
                                                              const __grid_constant__ Arguments a) {
  extern __shared__ std::byte memory[];
  auto& shared = aligned<Shared>(memory);
  allow_next_kernel();
  if (threadIdx.x == 0) {
    prefetch_map(maps.weight);
    prefetch_map(maps.x);
    prefetch_map(maps.x_part);
    prefetch_map(maps.out);
    prefetch_map(maps.out_part);
    for (int stage = 0; stage < kMaxStages; ++stage) {
      init_barrier(shared.there[stage], 1);
      init_barrier(shared.done[stage], kGroups * kWarpgroup / kWarp);
    }
    if constexpr (K::kPacked) {
      for (int stage = 0; stage < kMaxPackedStages; ++stage) {
        init_barrier(shared.weights_there[stage], 1);
        init_barrier(shared.weights_done[stage], kGroups * kWarpgroup / kWarp);
      }
    }
    if constexpr (K::kDivides) {
      init_barrier(shared.parts, 1);
      arrive_and_expect(shared.parts, K::kPartsBytes);
    }
    publish_barriers();
  }
  if constexpr (K::kPacked && !K::kCoded) {
    if (threadIdx.x >= kWarpgroup) int4_table(shared).fill(threadIdx.x - kWarpgroup);
  }
  __syncthreads();
  if (K::kDivides && a.tiling.split > 1) arrive_in_cluster();
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    if constexpr (K::kPacked) {
      if (threadIdx.x == 0) {
        if constexpr (K::kGrouped) wait_for_inputs();
        copy_packed_weights<K>(a, maps, shared);
      } else if (threadIdx.x == kWarp) {
        wait_for_inputs();
        copy_rows<K>(a, maps, shared);
      }
    } else if (threadIdx.x == 0) {
      if constexpr (K::kGrouped) wait_for_inputs();  // which weights are read is one of them
      copy_tiles<K>(a, maps, shared);
    }
  } else {
    take_registers<232>();
    Consumer<K>(a, maps, shared).run();
  }
}

/// Whether kernels of experts and of packed weights finish such gates.
inline bool has_gate(Activation activation) {
  return activation == Activation::silu || activation == Activation::gelu ||
         activation == Activation::gelu_tanh || is_of_gates(activation);
}

/// Whether x [rows, inputs], the weight and the result begin rows at multiples of 16 bytes, as
/// copies of boxes want it.
inline bool boxes_fit(const Matrix& x, const Weight& weight, const Destination& to) {
  return rows_begin_at_16(x.data, x.stride, x.dtype) &&
         rows_begin_at_16(weight.data, weight.row_bytes(), DType::i8) &&
         rows_begin_at_16(to.out, to.stride, to.dtype);
}

template <typename K>
int steps_of(const Product& product) {
  return ceil_div(product.inputs, K::kStepColumns);
}

/// `a`: what the kernel does; how it goes through shared memory is found here.
template <typename K>
void launch(Arguments a, DType type, const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared) + kBlockAlignment;
  static_assert(kSharedBytes <= 232448, "a block may have 227 KB");
  const auto kernel = product_kernel<K>;
  allow_shared_memory(kernel, kSharedBytes);
  const Product& product = a.product;
  const Tiling& tiling = a.tiling;
  a.steps = steps_of<K>(product);
  if constexpr (K::kPacked) {
    constexpr int kFewRows = 128;  // beside which weights are what takes the time
    constexpr int kTableBytes = K::kCoded ? 0 : static_cast<int>(sizeof(DeviceInt4Table));
    a.n_weight_stages = tiling.rows <= kFewRows ? kMaxPackedStages : 2;
    a.stage_bytes = tiling.rows * kBlockRowBytes;
    const int left = kStagesBytes - kTableBytes - a.n_weight_stages * packed_stage_bytes<K>(a);
    a.n_stages = std::min(kMaxStages, left / a.stage_bytes);
  } else {
    a.stage_bytes = kWeightsBytes + tiling.rows * kBlockRowBytes;
    a.n_stages = std::min(kMaxStages, kStagesBytes / a.stage_bytes);
  }
  const ProductDestination& to = product.to;
  const auto boxes_of = [&](int rows) {
    return describe({product.x, type, product.rows, product.inputs, product.x_stride, rows});
  };
  const auto results_of = [&](const void* out, int rows) {
    return describe({out, to.dtype, product.rows, product.outputs, to.stride, rows, K::kBoxBytes});
  };
  const int64_t channels = a.experts * (K::kGated ? 2 : 1) * product.outputs;
  BoxedMatrix weights{product.weight, type,           channels,
                      product.inputs, product.inputs, kTileChannels};
  // In words, of which a box may have enough.
  if constexpr (K::kPacked) {
    const WeightFormat format = K::kCoded ? a.coded.format : WeightFormat::int4;
    const int64_t words = row_bytes(format, product.inputs) / kPackedWord;
    weights = {product.weight, DType::f32,    channels,          words,
               words,          kTileChannels, packed_pitch<K>(a)};
  } else if constexpr (K::kE4m3) {
    a.weight_row_bytes = row_bytes(WeightFormat::fp8, product.inputs);
    weights.dtype = DType::f32;
    weights.cols = e4m3_code_bytes(product.inputs) / kPackedWord;
    weights.stride = a.weight_row_bytes / kPackedWord;
  }
  Maps maps{.x = boxes_of(tiling.rows),
            .x_part = boxes_of(kPartRows),
            .weight = K::kGated ? describe_by_eights(weights, product.outputs) : describe(weights),
            .out = results_of(to.out, K::kPieceRows),
            .out_part = results_of(to.out, kPartRows),
            .far = {},
            .far_part = {}};
  if (to.far != nullptr) {
    maps.far = results_of(to.far, K::kPieceRows);
    maps.far_part = results_of(to.far, kPartRows);
  }
  int grid = std::min(tiling.pieces * tiling.split, gpu_attribute(cudaDevAttrMultiProcessorCount));
  if (K::kReadsOnce && tiling.split == 1) {
    // Of blocks that take equally many pieces: others' places are for the kernels behind.
    grid = ceil_div(tiling.pieces, ceil_div(tiling.pieces, grid));
  }
  queue.launch(
      "multiplying matrices", kernel,
      {static_cast<unsigned>(grid), kThreads, kSharedBytes, static_cast<unsigned>(tiling.split)},
      maps, a);
}

/// By the kernel of the tiles' rows. coded: of the weight.
template <typename Element, typename Out, Finish kLast>
void launch(const Product& product, DType type, const Queue& queue, const CodedLayout& coded = {}) {
  constexpr int kMost = std::is_same_v<Element, __nv_fp8_e4m3> ? kMostRowsBesideE4m3
                        : std::is_same_v<Element, Coded>       ? kMostRowsBesideCodes
                                                               : kMaxTileRows;
  constexpr int kFew = 128;
  using Most = Kind<Element, Out, kLast, kMost>;
  const TiledProduct tiled{product.rows,
                           ceil_div(product.outputs, Most::kOutputs),
                           steps_of<Most>(product),
                           Most::kHalves,
                           Most::kStepParts,
                           kMost};
  const Tiling tiling = choose_tiling(tiled, gpu_attribute(cudaDevAttrMultiProcessorCount));
  Arguments arguments{.product = product, .tiling = tiling};
  arguments.coded = coded;
  if (tiling.rows <= 64) {
    launch<Kind<Element, Out, kLast, 64>>(arguments, type, queue);
  } else if (kMost == kFew || tiling.rows > kFew) {
    launch<Most>(arguments, type, queue);
  } else if constexpr (kMost > kFew) {
    launch<Kind<Element, Out, kLast, kFew>>(arguments, type, queue);
  }
}

/// By what becomes of results. Gates give bf16.
template <typename Element>
void launch_finished(const Product& product, DType type, bool gated, const Queue& queue,
                     const CodedLayout& coded = {}) {
  if (gated) {
    launch<Element, __nv_bfloat16, Finish::gate>(product, type, queue, coded);
  } else if (product.to.dtype == DType::f32) {
    launch<Element, float, Finish::none>(product, type, queue, coded);
  } else {
    launch<Element, __nv_bfloat16, Finish::none>(product, type, queue, coded);
  }
}

}  // namespace

}  // namespace faststream
