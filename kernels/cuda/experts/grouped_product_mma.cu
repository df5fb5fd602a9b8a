// Products of many matrices with a few rows each, on the tensor cores. Beside few rows they are
// bound by memory: an expert's weights are read once for up to 16 rows. Beside many they are bound
// by the tensor cores.
//
// A block makes a tile of one expert's rows and outputs. Steps of 128 bytes of both inputs go
// through a ring in shared memory that asynchronous copies fill; 16 bytes of eight neighbouring
// rows are in different banks. Types differ in the multiplication alone: an instruction takes 32
// bytes of a row, sixteen 16-bit elements or thirty-two 8-bit ones, and lanes hold the same bytes
// of both.
//
// An output is one chain of instructions from the first input to the last, whatever the tile, so
// that a row's result does not depend on how many others its expert has.
#include <stdexcept>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kStepBytes = 128;           // of a row
constexpr int kPieces = kStepBytes / 16;  // that a copy takes
constexpr int kInstructions = kStepBytes / 32;

/// kRows: of x. kOutputs: rows of the weight, half of them of each matrix when gated. Few rows: 40
/// kB, of which five blocks and more fit on a multiprocessor, 30 kB of each on the way from memory.
template <int kTileRows>
struct Tiling {
  static constexpr bool kFew = kTileRows == kFewTileRows;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kFew ? 64 : 128;
  static constexpr int kWarpsDown = kFew ? 1 : 2;
  static constexpr int kWarpsAcross = 4;
  static constexpr int kThreads = kWarpsDown * kWarpsAcross * kWarp;
  static constexpr int kStages = kFew ? 4 : 3;
  static constexpr int kStageBytes = (kRows + kOutputs) * kStepBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

template <typename T>
struct Sums {
  using Type = float;
};
template <>
struct Sums<int8_t> {
  using Type = int32_t;
};

template <typename T>
__device__ void multiply_add(typename Sums<T>::Type (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
  if constexpr (sizeof(T) == 1) {
    mma_16x8x32(sums, a, b0, b1);
  } else {
    mma_16x8x16<T>(sums, a, b0, b1);
  }
}

/// Where 16-byte piece `piece` of a row is in a matrix of a stage.
__device__ uint32_t place(int row, int piece) {
  return row * kStepBytes + (piece ^ (row % kPieces)) * 16;
}

template <typename T, typename Tiling, bool kGated>
__global__ __launch_bounds__(Tiling::kThreads) void grouped_product_kernel(GroupedProduct p) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kMatrixOutputs = Tiling::kOutputs / kMatrices;
  constexpr int kWarpRows = Tiling::kRows / Tiling::kWarpsDown;
  constexpr int kWarpOutputs = kMatrixOutputs / Tiling::kWarpsAcross;  // of each matrix
  constexpr int kDown = kWarpRows / 16;                                // instructions
  constexpr int kAcross = kWarpOutputs / 8;                            // of each matrix
  constexpr int kPairs = kMatrices * kAcross / 2;
  constexpr int kCopied = Tiling::kThreads / kPieces;  // rows that the block copies at a time
  static_assert(kMatrices * kAcross % 2 == 0, "weights are loaded for two instructions");
  extern __shared__ __align__(128) unsigned char ring[];

  wait_for_inputs();
  if (static_cast<int>(blockIdx.y) >= *p.n_tiles) return;
  const RowTile tile = p.tiles[blockIdx.y];
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kMatrixOutputs;
  const int64_t first_channel = tile.expert * kMatrices * p.outputs;
  const int64_t row_bytes = p.weight.cols * static_cast<int64_t>(sizeof(T));

  // What a thread copies: a piece of rows copied_row, copied_row + kCopied, ... Outputs past the
  // end repeat the last one and are not stored; rows past the end are zeros.
  const int copied_row = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const unsigned char* x[Tiling::kRows / kCopied];
#pragma unroll
  for (int i = 0; i < Tiling::kRows / kCopied; ++i) {
    const int at = tile.first + min(copied_row + i * kCopied, tile.rows - 1);
    const int64_t row = p.x_rows != nullptr ? p.x_rows[at] : at;
    x[i] = static_cast<const unsigned char*>(p.x) +
           row * p.x_stride * static_cast<int64_t>(sizeof(T)) + piece * 16;
  }
  const unsigned char* weight[Tiling::kOutputs / kCopied];
#pragma unroll
  for (int i = 0; i < Tiling::kOutputs / kCopied; ++i) {
    const int row = copied_row + i * kCopied;
    const int64_t output = min(first_output + row % kMatrixOutputs, p.outputs - 1);
    weight[i] = static_cast<const unsigned char*>(p.weight.data) +
                (first_channel + row / kMatrixOutputs * p.outputs + output) * row_bytes +
                piece * 16;
  }
  const auto memory = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const int steps = ceil_div(row_bytes, kStepBytes);
  const auto copy_step = [&](int step) {
    if (step < steps) {
      const uint32_t stage = memory + step % Tiling::kStages * Tiling::kStageBytes;
      const int64_t offset = static_cast<int64_t>(step) * kStepBytes;
      const bool wanted = offset + piece * 16 < row_bytes;
#pragma unroll
      for (int i = 0; i < Tiling::kOutputs / kCopied; ++i) {
        copy_async(stage + place(Tiling::kRows + copied_row + i * kCopied, piece),
                   weight[i] + offset, wanted);
      }
#pragma unroll
      for (int i = 0; i < Tiling::kRows / kCopied; ++i) {
        const int row = copied_row + i * kCopied;
        copy_async(stage + place(row, piece), x[i] + offset, wanted && row < tile.rows);
      }
    }
    close_copies();
  };

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = warp / Tiling::kWarpsAcross * kWarpRows;
  const int warp_output = warp % Tiling::kWarpsAcross * kWarpOutputs;
  // Of instruction n of both matrices together: its first row of the stage.
  const auto weight_row = [&](int n) {
    return Tiling::kRows + n / kAcross * kMatrixOutputs + warp_output + n % kAcross * 8;
  };

#pragma unroll
  for (int step = 0; step < Tiling::kStages - 1; ++step) copy_step(step);
  typename Sums<T>::Type sums[kDown][kMatrices * kAcross][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<Tiling::kStages - 2>();
    __syncthreads();  // all copies of the step are there, and the stage filled next was read by all
    copy_step(step + Tiling::kStages - 1);
    const uint32_t stage = memory + step % Tiling::kStages * Tiling::kStageBytes;
#pragma unroll
    for (int i = 0; i < kInstructions; ++i) {
      uint32_t a[kDown][4];
#pragma unroll
      for (int down = 0; down < kDown; ++down) {
        load_matrices<false>(a[down],
                             stage + place(warp_row + down * 16 + lane % 16, 2 * i + lane / 16));
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int row = lane < 16 ? weight_row(2 * pair) : weight_row(2 * pair + 1);
        uint32_t b[4];
        load_matrices<false>(b, stage + place(row + lane % 8, 2 * i + lane / 8 % 2));
#pragma unroll
        for (int down = 0; down < kDown; ++down) {
          multiply_add<T>(sums[down][2 * pair], a[down], b[0], b[1]);
          multiply_add<T>(sums[down][2 * pair + 1], a[down], b[2], b[3]);
        }
      }
    }
  }
  allow_next_kernel();

  Destination to = p.to;
  if (to.bias != nullptr) to.bias += first_channel;
  if (to.scales != nullptr) to.scales += first_channel;
#pragma unroll
  for (int down = 0; down < kDown; ++down) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = warp_row + down * 16 + half * 8 + lane / 4;
      if (in_tile >= tile.rows) continue;
      const int at = tile.first + in_tile;
      float row_scale = 1;
      if constexpr (sizeof(T) == 1) {
        row_scale = p.row_scales[p.x_rows != nullptr ? p.x_rows[at] : at];
      }
      const auto value = [&](int n, int i, int64_t channel) {
        const auto sum = static_cast<float>(sums[down][n][2 * half + i]);
        return sizeof(T) == 1 ? scaled(sum, row_scale, to.scales[channel]) : sum;
      };
#pragma unroll
      for (int n = 0; n < kAcross; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t output = first_output + warp_output + n * 8 + lane % 4 * 2 + i;
          if (output >= p.outputs) continue;
          if constexpr (kGated) {
            const int64_t up = p.outputs + output;
            finish_gate(to, at, output, add_bias(to, output, value(n, i, output)),
                        add_bias(to, up, value(n + kAcross, i, up)));
          } else {
            finish_product(to, at, output, value(n, i, output));
          }
        }
      }
    }
  }
}

template <typename T, typename Tiling, bool kGated>
void launch(const GroupedProduct& p, const Queue& queue) {
  const auto kernel = grouped_product_kernel<T, Tiling, kGated>;
  constexpr int kUsualSharedBytes = 48 << 10;
  if constexpr (Tiling::kSharedBytes > kUsualSharedBytes) {
    allow_shared_memory(kernel, Tiling::kSharedBytes);
  }
  const dim3 grid(ceil_div(p.outputs, kGated ? Tiling::kOutputs / 2 : Tiling::kOutputs),
                  p.max_tiles);
  queue.launch("multiplying by experts", kernel, {grid, Tiling::kThreads, Tiling::kSharedBytes}, p);
}

template <typename T, typename Tiling>
void launch(const GroupedProduct& p, const Queue& queue) {
  p.gated ? launch<T, Tiling, true>(p, queue) : launch<T, Tiling, false>(p, queue);
}

template <typename T>
void launch(const GroupedProduct& p, const Queue& queue) {
  switch (p.tile_rows) {
    case kFewTileRows:
      return launch<T, Tiling<kFewTileRows>>(p, queue);
    case 64:
      return launch<T, Tiling<64>>(p, queue);
    case 128:
      return launch<T, Tiling<128>>(p, queue);
    default:
      throw std::logic_error("grouped_product_mma: no kernel has tiles of so many rows");
  }
}

}  // namespace

// An expert's last tile is half empty: large ones pay where each has several.
int32_t choose_tile_rows(int64_t pairs, int64_t n_experts) {
  if (pairs <= kFewTileRows * n_experts) return kFewTileRows;
  return pairs <= 256 * n_experts ? 64 : 128;
}

void grouped_product_mma(const GroupedProduct& product, const Queue& queue) {
  switch (product.weight.stored_as()) {
    case DType::bf16:
      return launch<__nv_bfloat16>(product, queue);
    case DType::f16:
      return launch<__half>(product, queue);
    case DType::i8:
      return launch<int8_t>(product, queue);
    case DType::f32:
    case DType::u8:
    case DType::packed:
      break;
  }
  throw std::logic_error("grouped_product_mma: neither a 16-bit type nor i8");
}

}  // namespace faststream
