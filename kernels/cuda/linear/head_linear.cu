// Products of heads, each with rows of its own. On the tensor cores where x has 16 bits: the lanes
// of a warp hold the weights of eight outputs, widened from any format, and multiply them with rows
// of x that all warps of the block take from shared memory. Else float arithmetic, a warp for each
// output of a few rows.
//
// Bytes: weights are read once for each 32 rows, from the L2 cache but for the first time: for
// DeepSeek-V2-Lite's 16 heads of 128 x 512 in int8 1 MB, 0.3 us at 3.35 TB/s.
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

// Of the kernel on the tensor cores. Within 32 inputs a lane takes eight in a row: it does not
// matter which of them a step of the product is said to have, if rows and weights agree.
constexpr int kMmaWarps = 8;
constexpr int kMmaThreads = kMmaWarps * kWarp;
constexpr int kMmaRows = 32;
constexpr int kMmaOutputs = kMmaWarps * 8;
constexpr int kEach = 8;  // inputs of a lane, of
constexpr int kChunk = 32;
constexpr int kChunks = 16;  // at a time
constexpr int kInner = kChunks * kChunk;
constexpr int kStride = kInner + kChunk;  // of two rows' sixteen-byte pieces no two share banks

template <typename T, typename WeightRows>
__global__ __launch_bounds__(kMmaThreads, 2) void head_linear_mma_kernel(HeadProduct p,
                                                                         WeightRows weights) {
  __shared__ __align__(16) T x_rows[kMmaRows][kStride];
  allow_next_kernel();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * kMmaRows;
  const auto n_rows = static_cast<int>(min(p.rows - first_row, int64_t{kMmaRows}));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first_output =
      (static_cast<int>(blockIdx.x) * kMmaWarps + static_cast<int>(threadIdx.x) / kWarp) * 8;
  const int64_t weight_rows = static_cast<int64_t>(head) * p.outputs;
  const int64_t weight_row = weight_rows + min(first_output + g, p.outputs - 1);
  const T* x = static_cast<const T*>(p.x) + p.x_at(first_row, head);

  uint32_t held[kChunks][4];
  const auto hold_weights = [&](int first) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = first + c * kChunk + t * kEach;
      float values[kEach] = {};
      if (column < p.inputs) weights.template load<kEach>(weight_row, column, values);
#pragma unroll
      for (int i = 0; i < 4; ++i) held[c][i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
    }
  };

  float sums[kMmaRows / 16][4] = {};
  hold_weights(0);
  wait_for_inputs();
  for (int first = 0; first < p.inputs; first += kInner) {
    if (first > 0) {
      hold_weights(first);
      __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < kMmaRows * kInner / kEach; i += kMmaThreads) {
      const int row = i / (kInner / kEach);
      const int column = i % (kInner / kEach) * kEach;
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (row < n_rows && first + column < p.inputs) {
        piece = *reinterpret_cast<const uint4*>(x + row * p.x_stride + p.copied + first + column);
      }
      *reinterpret_cast<uint4*>(&x_rows[row][column]) = piece;
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kMmaRows / 16; ++tile) {
      if (tile * 16 >= n_rows) break;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (first + c * kChunk >= p.inputs) break;
        const int column = c * kChunk + t * kEach;
        const uint4 low = *reinterpret_cast<const uint4*>(&x_rows[tile * 16 + g][column]);
        const uint4 high = *reinterpret_cast<const uint4*>(&x_rows[tile * 16 + g + 8][column]);
        const uint32_t a0[4] = {low.x, high.x, low.y, high.y};
        const uint32_t a1[4] = {low.z, high.z, low.w, high.w};
        mma_16x8x16<T>(sums[tile], a0, held[c][0], held[c][1]);
        mma_16x8x16<T>(sums[tile], a1, held[c][2], held[c][3]);
      }
    }
  }

  T* out = static_cast<T*>(p.out) + p.out_at(first_row, head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int output = first_output + 2 * t + i;
    if (output >= p.outputs) break;
    const float scale = p.scales != nullptr ? p.scales[weight_rows + output] : 1;
#pragma unroll
    for (int n = 0; n < kMmaRows / 8; ++n) {
      const int row = n * 8 + g;
      if (row >= n_rows) break;
      out[row * p.out_stride + p.copied + output] =
          from_float<T>(sums[n / 2][n % 2 * 2 + i] * scale);
    }
  }
  if (blockIdx.x != 0) return;
  const int pieces = p.copied / kEach;
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * pieces; i += kMmaThreads) {
    const int row = i / pieces;
    const int column = i % pieces * kEach;
    *reinterpret_cast<uint4*>(out + row * p.out_stride + column) =
        *reinterpret_cast<const uint4*>(x + row * p.x_stride + column);
  }
}

// Whether heads begin at pieces of eight 16-bit elements, 16 bytes.
bool mma_fits(const HeadProduct& p) {
  const auto in_pieces = [](int64_t elements) { return elements % kEach == 0; };
  const auto begins = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return in_pieces(p.inputs) && in_pieces(p.copied) && in_pieces(p.x_stride) && begins(p.x) &&
         (p.copied == 0 || (in_pieces(p.outputs) && in_pieces(p.out_stride) && begins(p.out)));
}

constexpr int kHeadWarps = 8;
constexpr int kHeadRows = 4;

template <typename T, typename WeightRows>
__global__ __launch_bounds__(kHeadWarps* kWarp) void head_linear_any_kernel(HeadProduct p,
                                                                            WeightRows weights) {
  begin_kernel();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * kHeadRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output =
      static_cast<int>(blockIdx.x) * kHeadWarps + static_cast<int>(threadIdx.x) / kWarp;
  const T* x = static_cast<const T*>(p.x);
  T* out = static_cast<T*>(p.out);
  if (output < p.outputs) {
    const int64_t weight_row = static_cast<int64_t>(head) * p.outputs + output;
    float sums[kHeadRows] = {};
    for (int c = lane; c < p.inputs; c += kWarp) {
      const float w = element(weights, weight_row, c);
#pragma unroll
      for (int i = 0; i < kHeadRows; ++i) {
        const int64_t row = min(first_row + i, p.rows - 1);
        sums[i] += w * to_float(x[p.x_at(row, head) + p.copied + c]);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadRows; ++i) {
      float sum = warp_sum(sums[i]);
      if (p.scales != nullptr) sum *= p.scales[weight_row];
      if (lane == 0 && first_row + i < p.rows) {
        out[p.out_at(first_row + i, head) + p.copied + output] = from_float<T>(sum);
      }
    }
  }
  if (blockIdx.x != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kHeadRows * p.copied; i += kHeadWarps * kWarp) {
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
        if (mma_fits(p)) {
          const dim3 grid(ceil_div(p.outputs, kMmaOutputs), heads, ceil_div(p.rows, kMmaRows));
          return queue.launch("multiplying heads", head_linear_mma_kernel<T, WeightRows>,
                              {grid, kMmaThreads}, p, rows);
        }
      }
      const dim3 grid(ceil_div(p.outputs, kHeadWarps), heads, ceil_div(p.rows, kHeadRows));
      queue.launch("multiplying heads", head_linear_any_kernel<T, WeightRows>,
                   {grid, kHeadWarps * kWarp}, p, rows);
    });
  });
}

}  // namespace faststream
