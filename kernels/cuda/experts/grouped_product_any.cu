// Products of experts in float arithmetic, the path of f32 models, odd shapes and formats without
// kernels of their own: a warp for each output of a tile's rows, kAnyRows of them at a time.
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

constexpr int kAnyWarps = 8;
constexpr int kAnyThreads = kAnyWarps * kWarp;
constexpr int kAnyRows = 4;

template <typename A, typename Rows>
__global__ __launch_bounds__(kAnyThreads) void grouped_any_kernel(GroupedProduct p, Rows rows) {
  begin_kernel();
  if (static_cast<int>(blockIdx.y) >= *p.n_tiles) return;
  const RowTile tile = p.tiles[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t output =
      static_cast<int64_t>(blockIdx.x) * kAnyWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (output >= p.outputs) return;
  const int64_t inputs = p.weight.cols;
  const int64_t first_channel = tile.expert * (p.gated ? 2 : 1) * p.outputs;
  Destination to = p.to;
  if (to.bias != nullptr) to.bias += first_channel;

  for (int first = 0; first < tile.rows; first += kAnyRows) {
    // Rows past the end repeat the last one and are not stored.
    const A* x[kAnyRows];
#pragma unroll
    for (int i = 0; i < kAnyRows; ++i) {
      const int at = tile.first + min(first + i, tile.rows - 1);
      const int64_t row = p.x_rows != nullptr ? p.x_rows[at] : at;
      x[i] = static_cast<const A*>(p.x) + row * p.x_stride;
    }
    // Of the weight's row first_channel + channel.
    const auto multiply = [&](int64_t channel, float(&totals)[kAnyRows]) {
      float sums[kAnyRows] = {};
      for (int64_t c = lane; c < inputs; c += kWarp) {
        const float w = element(rows, first_channel + channel, c);
#pragma unroll
        for (int i = 0; i < kAnyRows; ++i) sums[i] += w * to_float(x[i][c]);
      }
#pragma unroll
      for (int i = 0; i < kAnyRows; ++i) {
        totals[i] = warp_sum(sums[i]);
        if (to.scales != nullptr) totals[i] *= to.scales[first_channel + channel];
      }
    };
    float values[kAnyRows];
    float ups[kAnyRows] = {};
    multiply(output, values);
    if (p.gated) multiply(p.outputs + output, ups);
    if (lane != 0) continue;
    for (int i = 0; i < min(kAnyRows, tile.rows - first); ++i) {
      const int at = tile.first + first + i;
      if (p.gated) {
        finish_gate(to, at, output, add_bias(to, output, values[i]),
                    add_bias(to, p.outputs + output, ups[i]));
      } else {
        finish_product(to, at, output, values[i]);
      }
    }
  }
}

}  // namespace

void grouped_product_any(const GroupedProduct& p, const Queue& queue) {
  const dim3 grid(ceil_div(p.outputs, kAnyWarps), p.max_tiles);
  with_float_type(p.x_dtype, [&](auto x_zero) {
    with_weight_rows(p.weight, [&](const auto& rows) {
      using Rows = std::decay_t<decltype(rows)>;
      queue.launch("multiplying by experts", grouped_any_kernel<decltype(x_zero), Rows>,
                   {grid, kAnyThreads}, p, rows);
    });
  });
}

}  // namespace faststream
