// Products of heads, each with rows of its own. On the tensor cores where x has 16 bits: a block
// has a head's tile of rows and outputs, for which x and weights, widened from any format, pass
// through shared memory. Else float arithmetic, a warp for each output of a few rows.
//
// Bytes: the weights are read once for each 64 rows: for DeepSeek-V2-Lite's 16 heads of 128 x 512
// in bf16 2.1 MB, 0.6 us at 3.35 TB/s.
#include <cstring>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

struct HeadProduct {
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int copied;  // elements before those that are multiplied
  int inputs;
  int outputs;
  const float* scales;  // of the weight's rows; null: none

  [[nodiscard]] __device__ int64_t x_at(int64_t row, int head) const {
    return row * x_stride + static_cast<int64_t>(head) * (copied + inputs);
  }
  [[nodiscard]] __device__ int64_t out_at(int64_t row, int head) const {
    return row * out_stride + static_cast<int64_t>(head) * (copied + outputs);
  }
};

constexpr int kTile = 64;   // rows, and outputs, of a block
constexpr int kInner = 64;  // inputs at a time
constexpr int kStride = kInner + 8;
constexpr int kMmaThreads = 4 * kWarp;
constexpr int kMostFill = kTile * kInner / kMmaThreads;

// Elements of a row or of a weight's row, rows [first, first + kTile) and columns [k, k + kInner),
// by element(row, column); zeros where there are none.
template <typename T, typename Element>
__device__ void fill(T (&to)[kTile][kStride], int64_t n_rows, int n_columns, int k,
                     const Element& element) {
#pragma unroll 8
  for (int n = 0; n < kMostFill; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kMmaThreads;
    const int row = i / kInner;
    const int column = i % kInner;
    const bool is_there = row < n_rows && k + column < n_columns;
    to[row][column] = from_float<T>(is_there ? element(row, k + column) : 0.0F);
  }
}

template <typename T, typename WeightRows>
__global__ __launch_bounds__(kMmaThreads) void head_linear_mma_kernel(HeadProduct p,
                                                                      WeightRows weights) {
  __shared__ __align__(16) T x_tile[kTile][kStride];
  __shared__ __align__(16) T w_tile[kTile][kStride];
  begin_kernel();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * kTile;
  const int first_output = static_cast<int>(blockIdx.x) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;  // 16 rows each
  const T* x = static_cast<const T*>(p.x);
  T* out = static_cast<T*>(p.out);
  const int64_t weight_row = static_cast<int64_t>(head) * p.outputs + first_output;

  float sums[kTile / 8][4] = {};
  for (int k = 0; k < p.inputs; k += kInner) {
    fill(x_tile, p.rows - first_row, p.inputs, k, [&](int row, int column) {
      return to_float(x[p.x_at(first_row + row, head) + p.copied + column]);
    });
    fill(w_tile, p.outputs - first_output, p.inputs, k, [&](int row, int column) {
      const float value = weights.at(weight_row + row, column);
      return p.scales != nullptr ? value * p.scales[weight_row + row] : value;
    });
    __syncthreads();
    if (first_row + warp * 16 < p.rows) {
#pragma unroll
      for (int d = 0; d < kInner; d += 16) {
        uint32_t of_x[4];
        load_matrices<false>(of_x, &x_tile[warp * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < kTile / 8; n += 2) {
          uint32_t of_w[4];  // 8 outputs, and 8 more: inputs up to 8, and from there on
          load_matrices<false>(of_w,
                               &w_tile[n * 8 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
          mma_16x8x16<T>(sums[n], of_x, of_w[0], of_w[1]);
          mma_16x8x16<T>(sums[n + 1], of_x, of_w[2], of_w[3]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + warp * 16 + lane / 4 + i / 2 * 8;
      const int output = first_output + n * 8 + lane % 4 * 2 + i % 2;
      if (row < p.rows && output < p.outputs) {
        out[p.out_at(row, head) + p.copied + output] = from_float<T>(sums[n][i]);
      }
    }
  }
  if (blockIdx.x != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * p.copied; i += kMmaThreads) {
    const int64_t row = first_row + i / p.copied;
    if (row >= p.rows) break;
    out[p.out_at(row, head) + i % p.copied] = x[p.x_at(row, head) + i % p.copied];
  }
}

constexpr int kWarps = 8;
constexpr int kRows = 4;

template <typename T, typename WeightRows>
__global__ __launch_bounds__(kWarps* kWarp) void head_linear_any_kernel(HeadProduct p,
                                                                        WeightRows weights) {
  begin_kernel();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * kRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const T* x = static_cast<const T*>(p.x);
  T* out = static_cast<T*>(p.out);
  if (output < p.outputs) {
    const int64_t weight_row = static_cast<int64_t>(head) * p.outputs + output;
    float sums[kRows] = {};
    for (int c = lane; c < p.inputs; c += kWarp) {
      const float w = weights.at(weight_row, c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t row = min(first_row + i, p.rows - 1);
        sums[i] += w * to_float(x[p.x_at(row, head) + p.copied + c]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = warp_sum(sums[i]);
      if (p.scales != nullptr) sum *= p.scales[weight_row];
      if (lane == 0 && first_row + i < p.rows) {
        out[p.out_at(first_row + i, head) + p.copied + output] = from_float<T>(sum);
      }
    }
  }
  if (blockIdx.x != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * p.copied; i += kWarps * kWarp) {
    const int64_t row = first_row + i / p.copied;
    if (row >= p.rows) break;
    out[p.out_at(row, head) + i % p.copied] = x[p.x_at(row, head) + i % p.copied];
  }
}

}  // namespace

void CudaBackend::head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                              const Matrix& out) {
  if (x.rows == 0) return;
  HeadProduct p{};
  p.x = x.data;
  p.x_stride = x.stride;
  p.out = out.data;
  p.out_stride = out.stride;
  p.rows = x.rows;
  p.inputs = static_cast<int>(weight.cols);
  p.outputs = static_cast<int>(weight.rows / n_heads);
  p.copied = static_cast<int>(x.cols / n_heads - weight.cols);
  p.scales = weight.row_scales();
  const Queue queue = this->queue();
  const auto heads = static_cast<unsigned>(n_heads);
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_weight_rows(weight, [&](const auto& rows) {
      using WeightRows = std::decay_t<decltype(rows)>;
      if constexpr (sizeof(T) == 2) {
        const dim3 grid(ceil_div(p.outputs, kTile), heads, ceil_div(p.rows, kTile));
        queue.launch("multiplying heads", head_linear_mma_kernel<T, WeightRows>,
                     {grid, kMmaThreads}, p, rows);
      } else {
        const dim3 grid(ceil_div(p.outputs, kWarps), heads, ceil_div(p.rows, kRows));
        queue.launch("multiplying heads", head_linear_any_kernel<T, WeightRows>,
                     {grid, kWarps * kWarp}, p, rows);
      }
    });
  });
}

}  // namespace faststream
