// Products of many rows on Hopper's tensor cores, of 16-bit or int8 rows and weights. One warp
// copies tiles of both into shared memory ahead of two warpgroups, each of which has the sums of 64
// channels (rows of the weight) and all rows of the tile in its registers. Blocks stay, one a
// multiprocessor, and go from tile to tile, so that the copies for the next run while one is
// finished.
//
// The weight is the left operand: its 128 rows of a tile are read once, beside as many rows of x as
// there are, 64, 128 or 256, so that few rows cost little more than reading the weights. Where
// there are fewer tiles than multiprocessors, two blocks divide the inputs of a tile, and each adds
// and finishes half of the rows: integer sums do not depend on how they are divided. (Four blocks
// take longer: 37 us instead of 32 for 64 rows, 4,096 outputs and 14,336 inputs, 20 instead of 15
// for 4,096.)
//
// Sums are finished in registers, and results go through shared memory in bulk copies, which the L2
// cache adds to the residual stream: no thread waits for memory. (Beside full copies ahead, a load
// takes 1 us and more.)
//
// Clusters of two blocks that share rows of x ("multicast") read a third less from the L2 cache,
// but their steps took 1.85 times as many cycles, 1,850 instead of 1,010, for int8 and bf16 alike.
//
// 16-bit sums are chains of 16 inputs each, in order, as those of linear_in_order.cu and cuBLASLt.
// For files that are compiled for sm_90a.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kGroups = 2;  // warpgroups that multiply
constexpr int kGroupChannels = 64;
constexpr int kTileChannels = kGroups * kGroupChannels;
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kStagesBytes = 196608;  // of all stages
constexpr int kResultBytes = 16384;   // of a warpgroup's, on their way
constexpr int kBandRows = 2048;       // of x, which go through all weights together, in the L2
constexpr int kPartRows = 32;         // of a box of a tile that has fewer rows than others

/// What becomes of sums, besides scales and biases.
enum class Finish {
  none,
  gate,       ///< of SiLU: pairs of sums become one result
  activation  ///< any function of one element, of 16-bit products
};

/// What a kernel is made for: elements of x and the weight, of the result, and tiles of how many
/// rows of x.
template <typename ElementType, typename OutType, Finish kLast, int kTileRows>
struct Kind {
  using Element = ElementType;
  using Out = OutType;
  static constexpr bool kIntegers = std::is_same_v<Element, int8_t>;
  static constexpr bool kSplits = kIntegers && kTileRows < 256;  // blocks may divide the inputs
  using Sum = std::conditional_t<kIntegers, int32_t, float>;
  static constexpr bool kGated = kLast == Finish::gate;
  static constexpr bool kActivated = kLast == Finish::activation;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kGated ? kTileChannels / 2 : kTileChannels;
  static constexpr int kGroupOutputs = kOutputs / kGroups;
  static constexpr int kStepColumns = kBlockRowBytes / static_cast<int>(sizeof(Element));

  /// Results leave in boxes of so many columns, a warpgroup's side by side.
  static constexpr int kBoxBytes = std::min<int>(kGroupOutputs * sizeof(Out), kBlockRowBytes);
  static constexpr int kBoxColumns = kBoxBytes / static_cast<int>(sizeof(Out));
  static constexpr int kBoxes = kGroupOutputs / kBoxColumns;
  static constexpr int kPieceRows = std::min(kRows, kResultBytes / kBoxes / kBoxBytes);
  static constexpr int kPieces = kRows / kPieceRows;

  struct Stage {
    std::byte weights[kTileChannels * kBlockRowBytes];
    std::byte x[kRows * kBlockRowBytes];
  };
  static constexpr int kStages = kStagesBytes / static_cast<int>(sizeof(Stage));

  struct Shared {
    Stage stages[kStages];
    std::byte results[kGroups][kResultBytes];
    uint64_t there[kStages];
    uint64_t done[kStages];
  };
  using Place = PipelinePlace<kStages>;
};

struct Maps {
  CUtensorMap x;
  CUtensorMap x_part;  // boxes of kPartRows
  CUtensorMap weight;
  CUtensorMap out;
};

struct Arguments {
  Product product;
  int32_t tiles_down = 0;    // of x's rows
  int32_t tiles_across = 0;  // of channels
  int32_t steps = 0;         // of kBlockRowBytes of the inputs
  int32_t split = 1;         // blocks of a cluster, 1 or 2, which divide the steps
};

struct Tile {
  int first_row = 0;     // of x
  int first_output = 0;  // of the result
};

/// The steps of this block, the same in all its tiles.
struct Steps {
  int first = 0;
  int count = 0;
};

__device__ int rank_in_cluster(const Arguments& a) {
  return static_cast<int>(blockIdx.x) % a.split;
}

__device__ Steps steps_of_block(const Arguments& a) {
  const int rank = rank_in_cluster(a);
  const int first = a.steps * rank / a.split;
  return {first, a.steps * (rank + 1) / a.split - first};
}

/// Calls f(tile) for each tile of this block's cluster.
template <typename K, typename F>
__device__ void for_tiles(const Arguments& a, const F& f) {
  constexpr int kBand = kBandRows / K::kRows;
  const auto clusters = static_cast<int>(gridDim.x) / a.split;
  for (int n = static_cast<int>(blockIdx.x) / a.split; n < a.tiles_down * a.tiles_across;
       n += clusters) {
    const int band = n / (kBand * a.tiles_across);
    const int in_band = n % (kBand * a.tiles_across);
    const int height = min(kBand, a.tiles_down - band * kBand);
    f(Tile{(band * kBand + in_band % height) * K::kRows, in_band / height * K::kOutputs});
  }
}

/// Of x's last rows, fewer than a tile's, no more is copied than there is: a row that does not
/// exist takes a copy 5 ns, and a step would wait for it (404 rows, 28,672 outputs and 4,096
/// inputs: 161 us, 512 rows 113).
template <typename K>
__device__ void copy_tiles(const Arguments& a, const Maps& maps, typename K::Shared& shared) {
  using Place = typename K::Place;
  const Steps steps = steps_of_block(a);
  uint32_t n = 0;
  for_tiles<K>(a, [&](const Tile& tile) {
    const int rows = min(K::kRows, a.product.rows - tile.first_row);
    const int n_parts = rows == K::kRows ? 0 : ceil_div(rows, kPartRows);
    const uint32_t missing =
        rows == K::kRows ? 0 : (K::kRows - n_parts * kPartRows) * kBlockRowBytes;
    const auto copy_weights = [&](uint32_t nth, int step) {
      const Place at(nth);
      uint64_t& there = shared.there[at.stage];
      wait_for_phase(shared.done[at.stage], at.parity ^ 1U);
      arrive_and_expect(there, sizeof(typename K::Stage) - missing);
      std::byte* to = shared.stages[at.stage].weights;
      const int column = (steps.first + step) * K::kStepColumns;
      if constexpr (K::kGated) {
        copy_box_by_eights(to, maps.weight, column, tile.first_output / 8, there);
      } else {
        copy_box(to, maps.weight, column, tile.first_output, there);
      }
    };
    const auto copy_x = [&](uint32_t nth, int step) {
      const uint32_t stage = Place(nth).stage;
      std::byte* to = shared.stages[stage].x;
      const int column = (steps.first + step) * K::kStepColumns;
      if (n_parts == 0) copy_box(to, maps.x, column, tile.first_row, shared.there[stage]);
      for (int part = 0; part < n_parts; ++part) {
        const int row = part * kPartRows;
        copy_box(to + row * kBlockRowBytes, maps.x_part, column, tile.first_row + row,
                 shared.there[stage]);
      }
    };
    int step = 0;
    if (n == 0) {  // weights are there before the inputs
      const int ahead = min(steps.count, K::kStages);
      for (int i = 0; i < ahead; ++i) copy_weights(i, i);
      wait_for_inputs();
      for (; step < ahead; ++step, ++n) copy_x(n, step);
    }
    for (; step < steps.count; ++step, ++n) {
      copy_weights(n, step);
      copy_x(n, step);
    }
  });
}

/// One warpgroup's part of the tiles.
template <typename K>
class Consumer {
 public:
  __device__ Consumer(const Arguments& a, const Maps& maps, typename K::Shared& shared)
      : a_(a),
        maps_(maps),
        shared_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        lane_(thread_ % kWarp) {}

  __device__ void run() {
    const Steps steps = steps_of_block(a_);
    uint32_t n = 0;
    // Of a tile's rows, those that this block finishes.
    const int rows = K::kSplits ? K::kRows / a_.split : K::kRows;
    const int first_row = K::kSplits ? rank_in_cluster(a_) * rows : 0;
    for_tiles<K>(a_, [&](const Tile& tile) {
      load_scales(tile, tile.first_row + first_row);
      multiply(steps, n);
      n += steps.count;
      if constexpr (K::kSplits) {
        if (a_.split > 1) add_parts();
      }
      if constexpr (K::kActivated) activate_sums();
      finish(tile, tile.first_row + first_row, rows);
    });
    if (thread_ == 0) wait_for_bulk_reads();
  }

 private:
  using Out = typename K::Out;
  using Place = typename K::Place;

  // Of this thread's two channels, and of the rows from first_row on: lane l has row 32 i + l in
  // [i]. The products' time hides the loads'.
  __device__ void load_scales(const Tile& tile, int first_row) {
    const Destination& to = a_.product.to;
    const int warp = thread_ / kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t column = tile.first_output + group_ * K::kGroupOutputs +
                             (K::kGated ? 8 * warp + lane_ / 4 : 16 * warp + 8 * half + lane_ / 4);
      const int64_t channel = K::kGated && half == 1 ? column + a_.product.outputs : column;
      const bool exists = column < a_.product.outputs;
      channel_scales_[half] = K::kIntegers && exists ? to.scales[channel] : 1;
      biases_[half] = to.bias != nullptr && exists ? to.bias[channel] : 0;
    }
    if constexpr (K::kIntegers) {
#pragma unroll
      for (int i = 0; i < K::kRows / kWarp; ++i) {
        const int row = first_row + i * kWarp + lane_;
        row_scales_[i] = row < a_.product.rows ? a_.product.row_scales[row] : 0;
      }
    }
  }

  // sums_ of a tile whose first step is the block's nth.
  __device__ void multiply(const Steps& steps, uint32_t nth) {
    const auto release = [&](uint32_t n) {
      if (lane_ == 0) arrive(shared_.done[Place(n).stage]);
    };
    for (int step = 0; step < steps.count; ++step) {
      const Place at(nth + step);
      const typename K::Stage& stage = shared_.stages[at.stage];
      wait_for_phase(shared_.there[at.stage], at.parity);
      pin(sums_);
      begin_products();
#pragma unroll
      for (int offset = 0; offset < kBlockRowBytes; offset += 32) {
        multiply_rows<typename K::Element>(
            sums_,
            matrix_descriptor(&stage.weights[group_ * kGroupChannels * kBlockRowBytes + offset],
                              16),
            matrix_descriptor(&stage.x[offset], 16), step > 0 || offset > 0);
      }
      end_group();
      if (step > 0) {
        wait_for_groups<1>();
        release(nth + step - 1);
      }
    }
    wait_for_groups<0>();
    pin(sums_);
    release(nth + steps.count - 1);
  }

  // Makes the first half of the sums those of both blocks of the cluster, of this block's half of
  // the rows. Parts go through the stages, which this block has no other use for: it has one tile.
  __device__ void add_parts() {
    synchronize_threads(kStagesFree, kGroups * kWarpgroup);
    auto* parts = reinterpret_cast<int4*>(shared_.stages);
    constexpr int kEights = K::kRows / 8;
    const auto place = [&](int eight) {
      return parts + (group_ * kEights + eight) * kWarpgroup + thread_;
    };
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      *place(j) = make_int4(sums_[4 * j], sums_[4 * j + 1], sums_[4 * j + 2], sums_[4 * j + 3]);
    }
    synchronize_cluster();
    const int first = rank_in_cluster(a_) * kEights / 2;
#pragma unroll
    for (int j = 0; j < kEights / 2; ++j) {
      const int4 own = *place(first + j);
      const int4 other = load_of_block(place(first + j), 1 - rank_in_cluster(a_));
      sums_[4 * j] = own.x + other.x;
      sums_[4 * j + 1] = own.y + other.y;
      sums_[4 * j + 2] = own.z + other.z;
      sums_[4 * j + 3] = own.w + other.w;
    }
  }

  // Makes sums results, in one loop for each activation: they are in registers, so that loops are
  // unrolled.
  __device__ void activate_sums() {
    const auto apply = [&](const auto& function) {
#pragma unroll
      for (int i = 0; i < K::kRows / 2; ++i) {
        sums_[i] = function(__fadd_rn(sums_[i], biases_[i / 2 % 2]));
      }
    };
    switch (a_.product.to.activation) {
      case Activation::silu:
        return apply([](float x) { return activate(Activation::silu, x); });
      case Activation::gelu:
        return apply([](float x) { return activate(Activation::gelu, x); });
      case Activation::gelu_tanh:
        return apply([](float x) { return activate(Activation::gelu_tanh, x); });
      default:
        return apply([](float x) { return activate(Activation::relu, x); });
    }
  }

  // Writes `rows` rows from first_row on, whose sums are the first of sums_.
  __device__ void finish(const Tile& tile, int first_row, int rows) {
    std::byte* results = shared_.results[group_];
#pragma unroll
    for (int piece = 0; piece < K::kPieces; ++piece) {
      const int row = first_row + piece * K::kPieceRows;
      if ((K::kSplits && piece * K::kPieceRows >= rows) || row >= a_.product.rows) break;
      if (thread_ == 0) wait_for_bulk_reads();
      synchronize_threads(kResultsFree + group_, kWarpgroup);
      // Of a part's rows all are put, and the first leave.
#pragma unroll
      for (int j = 0; j < K::kPieceRows / 8; j += kTogether) {
        put(results, j, piece * K::kPieceRows / 8 + j);
      }
      publish_shared_writes();
      synchronize_threads(kResultsFree + group_, kWarpgroup);
      if (thread_ != 0) continue;
#pragma unroll
      for (int box = 0; box < K::kBoxes; ++box) {
        const std::byte* from = results + box * K::kPieceRows * K::kBoxBytes;
        const int column = tile.first_output + group_ * K::kGroupOutputs + box * K::kBoxColumns;
        if (column >= a_.product.outputs) continue;
        if (a_.product.to.add) {
          add_box(maps_.out, column, row, from);
        } else {
          store_box(maps_.out, column, row, from);
        }
      }
      end_bulk_group();
    }
  }

  // Eights of rows that put() takes.
  static constexpr int kTogether = K::kGated ? 4 : std::is_same_v<Out, float> ? 1 : 2;

  // The results of sums_ `from` to from + kTogether - 1, each of eight rows, as the eights `to` and
  // following of a piece, as boxes of the output's map lie.
  __device__ void put(std::byte* results, int to, int from) {
    const int warp = thread_ / kWarp;
    const int matrix = lane_ / 8;
    const int row = lane_ % 8;
    if constexpr (K::kGated) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float values[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float row_scale = row_scale_of(from + j, i);
          values[i] = silu(value(from + j, 0, i, row_scale)) * value(from + j, 1, i, row_scale);
        }
        pairs[j] = pack_pair<Out>(values[0], values[1]);
      }
      store_matrices<true>(
          results + (8 * (to + matrix) + row) * K::kBoxBytes + (warp ^ row / 2) * 16, pairs);
    } else if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float row_scale = row_scale_of(from, i);
        const int in_eight = lane_ % 4 * 2 + i;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = 16 * (warp % 2) + 8 * half + lane_ / 4;
          std::byte* place = results + warp / 2 * K::kPieceRows * K::kBoxBytes +
                             (8 * to + in_eight) * K::kBoxBytes + (column / 4 ^ in_eight) * 16 +
                             column % 4 * 4;
          *reinterpret_cast<float*>(place) = value(from, half, i, row_scale);
        }
      }
    } else {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float first_scale = row_scale_of(from + j, 0);
        const float second_scale = row_scale_of(from + j, 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          pairs[2 * j + half] = pack_pair<Out>(value(from + j, half, 0, first_scale),
                                               value(from + j, half, 1, second_scale));
        }
      }
      store_matrices<true>(results + (8 * (to + matrix / 2) + row) * K::kBoxBytes +
                               ((2 * warp + matrix % 2) ^ row) * 16,
                           pairs);
    }
  }

  // Of row 8 eight + 2t + i. `eight` is known to the compiler.
  __device__ float row_scale_of(int eight, int i) const {
    if constexpr (!K::kIntegers) return 1;
    return __shfl_sync(kAllLanes, row_scales_[eight / 4], eight % 4 * 8 + lane_ % 4 * 2 + i);
  }

  // A scaled sum with its bias.
  __device__ float value(int eight, int half, int i, float row_scale) const {
    const auto sum = sums_[4 * eight + 2 * half + i];
    if constexpr (K::kIntegers) {
      return __fadd_rn(static_cast<float>(sum) * row_scale * channel_scales_[half], biases_[half]);
    } else if constexpr (K::kActivated) {
      return sum;
    } else {
      const float value = sum + biases_[half];
      return K::kGated ? to_float(from_float<Out>(value)) : value;  // as beside few rows
    }
  }

  // Named barriers.
  static constexpr int kStagesFree = 1;
  static constexpr int kResultsFree = 2;  // and one more for the second warpgroup

  const Arguments& a_;
  const Maps& maps_;
  typename K::Shared& shared_;
  int group_;
  int thread_;
  int lane_;
  typename K::Sum sums_[K::kRows / 2];
  float channel_scales_[2];
  float biases_[2];
  float row_scales_[K::kRows / kWarp];
};

template <typename K>
__global__ __launch_bounds__(kThreads, 1) void product_kernel(const __grid_constant__ Maps maps,
                                                              const __grid_constant__ Arguments a) {
  extern __shared__ std::byte memory[];
  auto& shared = aligned<typename K::Shared>(memory);
  allow_next_kernel();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < K::kStages; ++stage) {
      init_barrier(shared.there[stage], 1);
      init_barrier(shared.done[stage], kGroups * kWarpgroup / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    if (threadIdx.x == 0) copy_tiles<K>(a, maps, shared);
    if (a.split > 1) synchronize_cluster();  // as add_parts() does
  } else {
    take_registers<232>();
    wait_for_inputs();
    Consumer<K>(a, maps, shared).run();
  }
  if (a.split > 1) synchronize_cluster();  // no block ends while others read its parts
}

/// Whether x [rows, inputs], the weight and the result begin rows at multiples of 16 bytes, as
/// copies of boxes want it.
inline bool boxes_fit(const Matrix& x, const Weight& weight, const Destination& to) {
  return rows_begin_at_16(x.data, x.stride, x.dtype) &&
         rows_begin_at_16(weight.data, weight.cols, weight.dtype) &&
         rows_begin_at_16(to.out, to.stride, to.dtype);
}

/// How the tiles of a product lie.
struct Tiling {
  int rows = 0;   // of x, of a tile: 64, 128 or 256
  int split = 1;  // blocks that divide the inputs of a tile: 1 or 2
};

/// By the time of the tiles that a multiprocessor takes, one after the other, in units of 10 ns, as
/// measured on an H100: of a step of kBlockRowBytes of inputs, of a tile's end, and of adding
/// parts. Inputs of one byte may be divided.
inline Tiling choose_tiling(const Product& product, int element_bytes, bool gated) {
  struct Cost {
    int rows;
    int step;
    int end;
    int adding;
  };
  constexpr Cost kCosts[] = {{64, 30, 100, 500}, {128, 47, 100, 600}, {256, 72, 300, 0}};
  const int blocks = gpu_attribute(cudaDevAttrMultiProcessorCount);
  const int across = ceil_div(product.outputs, gated ? kTileChannels / 2 : kTileChannels);
  const int steps = ceil_div(product.inputs * element_bytes, kBlockRowBytes);
  Tiling best;
  int64_t least = 0;
  for (const Cost& cost : kCosts) {
    const int64_t tiles = int64_t{ceil_div(product.rows, cost.rows)} * across;
    const auto take = [&](int split, int64_t time) {
      if (best.rows > 0 && time >= least) return;
      best = {cost.rows, split};
      least = time;
    };
    take(1, ceil_div(tiles, blocks) * (int64_t{steps} * cost.step + cost.end));
    if (cost.adding > 0 && element_bytes == 1 && 2 * tiles <= blocks && steps > 1) {
      take(2, int64_t{ceil_div(steps, 2)} * cost.step + cost.end + cost.adding);
    }
  }
  return best;
}

/// `split`: 1 or 2 blocks divide the inputs of a tile.
template <typename K>
void launch(const Product& product, DType type, int split, const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(typename K::Shared) + kBlockAlignment;
  static_assert(kSharedBytes <= 232448, "a block may have 227 KB");
  const auto kernel = product_kernel<K>;
  allow_shared_memory(kernel, kSharedBytes);
  const Arguments arguments{product, ceil_div(product.rows, K::kRows),
                            ceil_div(product.outputs, K::kOutputs),
                            ceil_div(product.inputs, K::kStepColumns), split};
  const int64_t tiles = int64_t{arguments.tiles_down} * arguments.tiles_across;
  const auto blocks = static_cast<unsigned>(
      split > 1 ? tiles * split
                : std::min<int64_t>(tiles, gpu_attribute(cudaDevAttrMultiProcessorCount)));
  const Destination& to = product.to;
  const auto boxes_of = [&](int rows) {
    return describe({product.x, type, product.rows, product.inputs, product.x_stride, rows});
  };
  const Maps maps{
      .x = boxes_of(K::kRows),
      .x_part = boxes_of(kPartRows),
      .weight = K::kGated ? describe_by_eights({product.weight, type, 2 * product.outputs,
                                                product.inputs, product.inputs, kTileChannels},
                                               product.outputs, 8)
                          : describe({product.weight, type, product.outputs, product.inputs,
                                      product.inputs, kTileChannels}),
      .out = describe({to.out, to.dtype, product.rows, product.outputs, to.stride,
                       std::min(K::kPieceRows, K::kRows / split), K::kBoxBytes})};
  queue.launch("multiplying matrices", kernel,
               {blocks, kThreads, kSharedBytes, static_cast<unsigned>(split)}, maps, arguments);
}

}  // namespace

}  // namespace faststream
