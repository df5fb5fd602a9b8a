// Products of int8 rows and int8 weights on Hopper. One warp copies tiles of both into shared
// memory ahead of two warpgroups, which have half a tile of sums each in their registers, scale
// them there and write the result: sums never go through memory. Blocks stay, one a multiprocessor,
// and go from tile to tile, so that the copies for the next run while the results of one are
// written.
//
// What bounds it is the L2 cache: a tile of 128 x 256 reads 48 KB for 8.4 million operations.
// Clusters of two blocks that read half of the weights each, for both, were slower (Llama-3-8B,
// 2,048 tokens: 42,800 instead of 55,200 tokens/s).
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace faststream {

namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kGroupRows = 64;
constexpr int kTileRows = kConsumers * kGroupRows;  // of x
constexpr int kTileWeights = 256;                   // rows of the weight; half of each when gated
constexpr int kBoxRows = 128;                       // of a copy
constexpr int kDepth = kBlockRowBytes;              // bytes of a row in a step
constexpr int kStages = 4;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int64_t kBandRows = 2048;  // of x, which go through all weights together, in the L2

struct Stage {
  std::byte x[kTileRows * kBlockRowBytes];
  std::byte weights[kTileWeights * kBlockRowBytes];
};

struct Shared {
  Stage stages[kStages];
  uint64_t there[kStages];
  uint64_t done[kStages];
};

/// x [rows, inputs] · weightᵀ, x as quantize_rows() makes it.
struct Int8Product {
  const int8_t* x = nullptr;
  const float* row_scales = nullptr;
  int64_t rows = 0;
  const void* weight = nullptr;
  int64_t inputs = 0;
  int64_t outputs = 0;  // of the result: half the weight's rows when gated
  Destination to;
};

struct Arguments {
  Int8Product product;
  int64_t tiles_down = 0;    // of x's rows
  int64_t tiles_across = 0;  // of outputs
  int32_t steps = 0;         // of kDepth
};

using Place = PipelinePlace<kStages>;

struct Tile {
  int64_t first_row = 0;     // of x
  int64_t first_output = 0;  // of the result
};

template <bool kGated>
__device__ Tile tile_at(const Arguments& a, int64_t n) {
  constexpr int64_t kBand = kBandRows / kTileRows;
  const int64_t band = n / (kBand * a.tiles_across);
  const int64_t in_band = n % (kBand * a.tiles_across);
  const int64_t height = min(kBand, a.tiles_down - band * kBand);
  return {(band * kBand + in_band % height) * kTileRows,
          in_band / height * (kGated ? kTileWeights / 2 : kTileWeights)};
}

template <bool kGated>
__device__ void copy_tiles(const Arguments& a, const CUtensorMap& x_map,
                           const CUtensorMap& weight_map, Shared& shared) {
  const auto second_box =
      static_cast<int>(kGated ? a.product.outputs : int64_t{kBoxRows});  // after the first
  uint32_t n = 0;
  for (int64_t t = blockIdx.x; t < a.tiles_down * a.tiles_across; t += gridDim.x) {
    const Tile tile = tile_at<kGated>(a, t);
    const auto row = static_cast<int>(tile.first_row);
    const auto output = static_cast<int>(tile.first_output);
    for (int step = 0; step < a.steps; ++step, ++n) {
      const Place at(n);
      Stage& stage = shared.stages[at.stage];
      uint64_t& there = shared.there[at.stage];
      wait_for_phase(shared.done[at.stage], at.parity ^ 1U);
      arrive_and_expect(there, sizeof(Stage));
      copy_box(stage.x, x_map, step * kDepth, row, there);
      copy_box(stage.weights, weight_map, step * kDepth, output, there);
      copy_box(stage.weights + kBoxRows * kBlockRowBytes, weight_map, step * kDepth,
               output + second_box, there);
    }
  }
}

/// Two neighbours of a row, as finish_product() does one.
template <typename T>
__device__ void finish_pair(const Destination& to, int64_t row, int64_t column, float first,
                            float second) {
  T* out = static_cast<T*>(to.out) + row * to.stride + column;
  if (to.add) {
    float before[2];
    load_floats(out, before);
    first += before[0];
    second += before[1];
  }
  first = add_bias(to, column, first);
  second = add_bias(to, column + 1, second);
  const T pair[2] = {from_float<T>(first), from_float<T>(second)};
  if constexpr (sizeof(T) == 2) {
    uint32_t bits;
    memcpy(&bits, pair, sizeof bits);
    *reinterpret_cast<uint32_t*>(out) = bits;
  } else {
    *reinterpret_cast<float2*>(out) = make_float2(pair[0], pair[1]);
  }
}

/// `sums`: of a warpgroup's 64 rows and kTileWeights rows of the weight.
template <typename T, bool kGated>
__device__ void write(const Int8Product& p, const Tile& tile, int group,
                      const int32_t (&sums)[kTileWeights / 2]) {
  constexpr int kOutputs = kGated ? kTileWeights / 2 : kTileWeights;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row =
        tile.first_row + group * kGroupRows + thread / kWarp * 16 + thread % kWarp / 4 + half * 8;
    if (row >= p.rows) continue;
    const float row_scale = p.row_scales[row];
#pragma unroll
    for (int j = 0; j < kOutputs / 8; ++j) {
      const int64_t column = tile.first_output + j * 8 + thread % 4 * 2;
      if (column >= p.outputs) continue;
      const auto scaled = [&](int at, int64_t channel) {
        const float2 scales = *reinterpret_cast<const float2*>(p.to.scales + channel);
        return make_float2(static_cast<float>(sums[at]) * row_scale * scales.x,
                           static_cast<float>(sums[at + 1]) * row_scale * scales.y);
      };
      float2 value = scaled(4 * j + 2 * half, column);
      if constexpr (kGated) {
        const float2 up = scaled(4 * (j + kOutputs / 8) + 2 * half, column + p.outputs);
        value = make_float2(silu(value.x) * up.x, silu(value.y) * up.y);
      }
      finish_pair<T>(p.to, row, column, value.x, value.y);
    }
  }
}

template <typename T, bool kGated>
__device__ void multiply_tiles(const Arguments& a, Shared& shared) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const auto release = [&](uint32_t step) {
    if (threadIdx.x % kWarp == 0) arrive(shared.done[Place(step).stage]);
  };
  uint32_t n = 0;
  for (int64_t t = blockIdx.x; t < a.tiles_down * a.tiles_across; t += gridDim.x) {
    int32_t sums[kTileWeights / 2];
    for (int step = 0; step < a.steps; ++step, ++n) {
      const Place at(n);
      const Stage& stage = shared.stages[at.stage];
      wait_for_phase(shared.there[at.stage], at.parity);
      pin(sums);
      begin_products();
#pragma unroll
      for (int offset = 0; offset < kDepth; offset += 32) {
        multiply_64x256x32(
            sums, matrix_descriptor(&stage.x[group * kGroupRows * kBlockRowBytes + offset], 16),
            matrix_descriptor(&stage.weights[offset], 16), step > 0 || offset > 0);
      }
      end_group();
      if (step > 0) {
        wait_for_groups<1>();
        release(n - 1);
      }
    }
    wait_for_groups<0>();
    pin(sums);
    release(n - 1);
    write<T, kGated>(a.product, tile_at<kGated>(a, t), group, sums);
  }
}

template <typename T, bool kGated>
__global__ __launch_bounds__(kThreads, 1) void int8_product_kernel(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
    const __grid_constant__ Arguments a) {
  extern __shared__ std::byte memory[];
  begin_kernel();
  auto& shared = aligned<Shared>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(shared.there[stage], 1);
      init_barrier(shared.done[stage], kConsumers * kWarpgroup / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_back_registers<40>();
    if (threadIdx.x == 0) copy_tiles<kGated>(a, x_map, weight_map, shared);
  } else {
    take_registers<232>();
    multiply_tiles<T, kGated>(a, shared);
  }
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  cuda_check(cudaGetDevice(&device), "reading the current GPU");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
             "reading the GPU's properties");
  return count;
}

template <typename T, bool kGated>
void launch(const Int8Product& product, const Queue& queue) {
  constexpr size_t kSharedBytes = sizeof(Shared) + kBlockAlignment;
  const auto kernel = int8_product_kernel<T, kGated>;
  allow_shared_memory(kernel, kSharedBytes);
  const Arguments arguments{product, ceil_div(product.rows, kTileRows),
                            ceil_div(product.outputs, kGated ? kTileWeights / 2 : kTileWeights),
                            ceil_div(product.inputs, kDepth)};
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(arguments.tiles_down * arguments.tiles_across, multiprocessors()));
  const int64_t width = kGated ? 2 * product.outputs : product.outputs;
  queue.launch("multiplying int8 matrices", kernel, {blocks, kThreads, kSharedBytes},
               describe({product.x, DType::i8, product.rows, product.inputs, kTileRows}),
               describe({product.weight, DType::i8, width, product.inputs, kBoxRows}), arguments);
}

// Whether there are tiles for most multiprocessors, and several share weights. Where not, cuBLASLt,
// which can divide the inputs, too, is faster.
bool pays(int64_t rows, int64_t outputs, bool gated) {
  const int64_t tiles = int64_t{ceil_div(rows, kTileRows)} *
                        ceil_div(outputs, gated ? kTileWeights / 2 : kTileWeights);
  return rows > kTileRows && 4 * tiles >= 3 * multiprocessors();
}

}  // namespace

Piece int8_rows_piece(int64_t rows, int64_t inputs) {
  return piece_of(rows, static_cast<size_t>(inputs) + sizeof(float), kTileRows);
}

bool int8_product_sm90a(DeviceBuffer& scratch, const Matrix& x, const Weight& weight,
                        const Destination& to, bool gated, const Queue& queue) {
  const int64_t outputs = gated ? weight.rows / 2 : weight.rows;
  const bool pairs_are_aligned =
      outputs % 2 == 0 && to.stride % 2 == 0 && reinterpret_cast<uintptr_t>(to.out) % 8 == 0;
  const bool finishes = gated ? to.activation == Activation::silu && to.bias == nullptr
                              : to.activation == Activation::none;
  if (!pairs_are_aligned || !finishes || !pays(x.rows, outputs, gated)) return false;
  const Piece piece = int8_rows_piece(x.rows, x.cols);
  std::byte* memory = scratch.at_least(piece.bytes);
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    auto* quantized = reinterpret_cast<int8_t*>(memory);
    auto* row_scales = reinterpret_cast<float*>(memory + (rows * x.cols + 255) / 256 * 256);
    quantize_rows(x.row_range(first, rows), {quantized, DType::i8, rows, x.cols}, row_scales,
                  queue);
    const Int8Product product{quantized, row_scales,        rows, weight.data, x.cols,
                              outputs,   to.from_row(first)};
    with_float_type(to.dtype, [&](auto zero) {
      using T = decltype(zero);
      gated ? launch<T, true>(product, queue) : launch<T, false>(product, queue);
    });
  }
  return true;
}

}  // namespace faststream
