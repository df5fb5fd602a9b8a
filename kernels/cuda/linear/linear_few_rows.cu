// Products with few rows and i8 weights: decode. Memory-bound: the weights are read once, at the
// speed of memory. And products of any types, in float arithmetic.
//
// Activations go to the tensor cores even for one row, not for their arithmetic (15/16 of it
// is wasted) but because they take the multiplications, the additions across lanes and up to
// sixteen activation rows off the other units, which an int8 stream already keeps busy with
// conversions. A block makes 16 outputs, its 8 warps share the inputs, and each lane reads 16 bytes
// of two weight rows at a time, four times before the first use: 64 kB and more in flight on each
// multiprocessor, where 3.1 TB/s at 0.7 us of latency need 17 kB.
//
// The trick: m16n8k16 wants elements 2t, 2t+1, 2t+8, 2t+9 of the inner dimension in lane t of four.
// A sum does not depend on its order, so the four are given to four consecutive bytes of memory
// instead, for weights and activations alike, and both are read in 16-byte pieces without shuffles.
//
// Bytes and predicted time for Llama-2-7B in INT8 at 3.10 TB/s, one row (measured: RESULTS.md):
//   attention_qkv  12288 x 4096   50.3 MB   16.2 us
//   attention_out   4096 x 4096   16.8 MB    5.4 us
//   ffn_gate_up    22016 x 4096   90.2 MB   29.1 us
//   ffn_down        4096 x 11008  45.1 MB   14.5 us
//   output         32000 x 4096  131.1 MB   42.3 us
#include "kernels/cuda/linear/linear_few_rows.h"

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kFewWarps = 8;
constexpr int kFewThreads = kFewWarps * kWarp;
constexpr int kTileRows = 16;  // outputs of a tensor core instruction
constexpr int kTileCols = 8;   // activation rows of one

// From so many on rows beside f32 weights are multiplied in tiles: of 64 outputs and 2,048 inputs
// 512 rows take 27 us in tiles, 15 without, 2,048 rows 27 and 56.
constexpr int64_t kRowsOfTiles = 1024;

// Four consecutive weights as the two registers of a fragment.
__device__ void unpack(const uint4& raw, int quad, uint32_t& low, uint32_t& high) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  int8_to_bf16(words[quad], low, high);
}

/// x: bf16, weights: i8. kTiles: tiles of eight activation rows.
template <int kTiles, bool kGated>
__global__ __launch_bounds__(kFewThreads, 2) void few_rows_kernel(Product p) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kUnroll = kGated ? 2 : 4;
  constexpr int kElements = 16;          // of a 16-byte load
  constexpr int kXLoads = 2;             // 16-byte loads of as many activations
  constexpr int kChunk = 4 * kElements;  // inputs that a warp takes at a time
  __shared__ float partial[kFewWarps][kMatrices][kTiles * kTileCols][kTileRows];

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int in_group = lane % 4;
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kTileRows;

  // Outputs past the end read the last row and are not stored.
  const int8_t* weight[kMatrices][2];
#pragma unroll
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output = min(first_output + group + 8 * half, p.outputs - 1);
      weight[matrix][half] =
          static_cast<const int8_t*>(p.weight) + (matrix * p.outputs + output) * p.inputs;
    }
  }

  uint4 w[kUnroll][kMatrices][2];
  const auto load_weights = [&](int64_t first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t column = first + u * kFewWarps * kChunk + in_group * kElements;
#pragma unroll
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          w[u][matrix][half] = column < p.inputs ? load_streaming(weight[matrix][half] + column)
                                                 : make_uint4(0, 0, 0, 0);
        }
      }
    }
  };

  int64_t first = static_cast<int64_t>(warp) * kChunk;
  load_weights(first);
  wait_for_inputs();
  float sums[kMatrices][kTiles][4] = {};
  while (first < p.inputs) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t column = first + u * kFewWarps * kChunk + in_group * kElements;
      uint4 x[kTiles][kXLoads];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = tile * kTileCols + group;
        const __nv_bfloat16* from =
            static_cast<const __nv_bfloat16*>(p.x) + row * p.x_stride + column;
#pragma unroll
        for (int i = 0; i < kXLoads; ++i) {
          x[tile][i] = row < p.rows && column < p.inputs ? reinterpret_cast<const uint4*>(from)[i]
                                                         : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int quad = 0; quad < kElements / 4; ++quad) {
#pragma unroll
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          uint32_t a[4];
          unpack(w[u][matrix][0], quad, a[0], a[2]);
          unpack(w[u][matrix][1], quad, a[1], a[3]);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            const uint4& pair = x[tile][quad / 2];
            const uint32_t b0 = quad % 2 == 0 ? pair.x : pair.z;
            const uint32_t b1 = quad % 2 == 0 ? pair.y : pair.w;
            mma_16x8x16<__nv_bfloat16>(sums[matrix][tile], a, b0, b1);
          }
        }
      }
    }
    first += static_cast<int64_t>(kFewWarps) * kChunk * kUnroll;
    load_weights(first);
  }
  allow_next_kernel();

#pragma unroll
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[warp][matrix][tile * kTileCols + 2 * in_group + i % 2][group + 8 * (i / 2)] =
            sums[matrix][tile][i];
      }
    }
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileCols * kTiles;
       i += kFewThreads) {
    const int row = i / kTileRows;
    const int64_t output = first_output + i % kTileRows;
    if (row >= p.rows || output >= p.outputs) continue;
    float totals[kMatrices] = {};
#pragma unroll
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      for (int from = 0; from < kFewWarps; ++from) {
        totals[matrix] += partial[from][matrix][row][i % kTileRows];
      }
      totals[matrix] =
          scaled(totals[matrix], p.row_scales[row], p.to.scales[matrix * p.outputs + output]);
    }
    if constexpr (kGated) {
      finish_gate(p.to, row, output, add_bias(p.to, output, totals[0]),
                  add_bias(p.to, p.outputs + output, totals[1]));
    } else {
      finish_product(p.to, row, output, totals[0]);
    }
  }
}

// Any types: a warp for each output of kRows rows, float arithmetic. kVector elements a lane at a
// time: 16 bytes of weights where rows are aligned, else one element.
template <typename A, typename W, int kRows, int kVector>
__global__ __launch_bounds__(kFewThreads) void any_rows_kernel(Product p) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t output =
      static_cast<int64_t>(blockIdx.x) * kFewWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (output >= p.outputs) return;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const W* weight = static_cast<const W*>(p.weight) + output * p.inputs;
  const A* x = static_cast<const A*>(p.x);

  // A warp may be alone on its multiprocessor, a router's say: it has as many loads on the way as
  // registers allow.
  constexpr int kUnroll = std::clamp(64 / (kRows * kVector), 2, 8);
  constexpr int kStep = kWarp * kVector;
  float sums[kRows] = {};
  for (int64_t first = static_cast<int64_t>(lane) * kVector; first < p.inputs;
       first += kUnroll * kStep) {
    // Zeros past the end, which change no sum, and all before the first is used: else the compiler
    // puts most loads behind what uses others.
    float w[kUnroll][kVector] = {};
    float a[kUnroll][kRows][kVector] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t column = first + u * kStep;
      if (column >= p.inputs) continue;
      load_floats(weight + column, w[u]);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        // Rows past the end repeat the last one and are not stored.
        load_floats(x + min(first_row + row, p.rows - 1) * p.x_stride + column, a[u][row]);
      }
    }
    asm volatile("" ::: "memory");
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[row] = __fmaf_rn(w[u][i], a[u][row][i], sums[row]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float total = warp_sum(sums[row]);
    if (lane != 0 || first_row + row >= p.rows) continue;
    if (p.to.scales != nullptr) total = __fmul_rn(total, p.to.scales[output]);
    finish_product(p.to, first_row + row, output, total);
  }
}

template <typename A, typename W, int kVector>
void launch_any_rows(const Product& p, const Queue& queue) {
  const auto launch = [&](auto kernel, int rows) {
    const dim3 grid(ceil_div(p.outputs, kFewWarps), ceil_div(p.rows, rows));
    queue.launch("multiplying matrices", kernel, {grid, kFewThreads}, p);
  };
  // Of few outputs, a router's say, each warp has one row, as long as nearly all run at once, then
  // four: it waits for loads, of eight rows for eight times as many.
  const auto fits = [&](int rows, int64_t warps) {
    return ceil_div(p.rows, rows) * p.outputs <=
           warps * gpu_attribute(cudaDevAttrMultiProcessorCount);
  };
  if (p.rows == 1 || fits(1, 32)) {
    launch(any_rows_kernel<A, W, 1, kVector>, 1);
  } else if (p.rows <= 4 || fits(4, 16)) {
    launch(any_rows_kernel<A, W, 4, kVector>, 4);
  } else {
    launch(any_rows_kernel<A, W, 8, kVector>, 8);
  }
}

void launch_few_rows(const Product& p, bool gated, const Queue& queue) {
  const auto launch = [&](auto kernel) {
    queue.launch("multiplying matrices", kernel, {ceil_div(p.outputs, kTileRows), kFewThreads}, p);
  };
  if (p.rows <= kTileCols) {
    launch(gated ? few_rows_kernel<1, true> : few_rows_kernel<1, false>);
  } else {
    launch(gated ? few_rows_kernel<2, true> : few_rows_kernel<2, false>);
  }
}

}  // namespace

bool few_rows_fit(const Matrix& x, const Weight& weight) {
  const bool types = (x.dtype == DType::bf16 || x.dtype == DType::f16) &&
                     (weight.stored_as() == x.dtype ||
                      (weight.format == WeightFormat::int8 && x.dtype == DType::bf16));
  return types && rows_begin_at_16(x.data, x.stride, x.dtype) &&
         rows_begin_at_16(weight.data, weight.cols, weight.stored_as());
}

ScratchPiece few_rows_piece(int64_t rows, int64_t inputs) {
  return piece_of(rows, static_cast<size_t>(inputs) * 2 + sizeof(float), kMaxFewRows);
}

void few_rows_product(const Input& input, const Weight& weight, const ProductDestination& to,
                      bool gated, DeviceBuffer& scratch, const Queue& queue) {
  const Matrix& x = input.x;
  if (weight.format != WeightFormat::int8) {
    in_order_product(product_of(x, 0, x.rows, weight, to, gated), weight.stored_as(), gated, queue);
    return;
  }
  const ScratchPiece piece = few_rows_piece(x.rows, x.cols);
  std::byte* quantized = scratch.at_least(piece.bytes);
  for (int64_t begin = 0; begin < x.rows; begin += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - begin);
    const size_t x_bytes = (static_cast<size_t>(rows * x.cols) * 2 + 255) / 256 * 256;
    auto* scales = reinterpret_cast<float*>(quantized + x_bytes);
    // Integers as bf16: their sums are integers too, exact in float up to 2^24.
    const Matrix integers(quantized, DType::bf16, rows, x.cols);
    quantize_rows(row_range(input, begin, rows), weight.rotated, integers, scales, queue);
    for (int64_t first = 0; first < rows; first += kMaxFewRows) {
      Product product = product_of(integers, first, kMaxFewRows, weight, to.from_row(begin), gated);
      product.row_scales = scales + first;
      launch_few_rows(product, gated, queue);
    }
  }
}

void any_rows_product(const Matrix& x, const Weight& weight, const ProductDestination& to,
                      const Queue& queue) {
  const Product product = product_of(x, 0, x.rows, weight, to, false);
  const bool aligned = rows_begin_at_16(x.data, x.stride, x.dtype) &&
                       rows_begin_at_16(weight.data, weight.cols, weight.stored_as());
  constexpr int64_t kEights = 8;
  if (aligned && x.rows >= kRowsOfTiles && weight.stored_as() == DType::f32 &&
      weight.cols % kEights == 0) {
    return float_tiles_product(product, x.dtype, queue);
  }
  with_float_type(x.dtype, [&](auto x_zero) {
    with_weight_type(weight.stored_as(), [&](auto w_zero) {
      using A = decltype(x_zero);
      using W = decltype(w_zero);
      constexpr int kVector = 16 / sizeof(W);
      if (aligned) {
        launch_any_rows<A, W, kVector>(product, queue);
      } else {
        launch_any_rows<A, W, 1>(product, queue);
      }
    });
  });
}

}  // namespace faststream
