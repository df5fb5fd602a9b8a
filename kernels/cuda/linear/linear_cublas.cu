// Products with many rows, on cuBLASLt.
//
// int8: quantize rows of x, multiply int8 by int8 into int32, then one kernel scales by row and by
// channel, adds bias or residual, or applies the gate. The int32 matrix costs 8 bytes an output of
// traffic, less where the L2 cache holds it: rows are taken kMaxSumRows at a time at most.
#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int64_t kGrain = 16;  // rows: the int8 tensor cores want multiples of 16
constexpr int64_t kMaxSumRows = 1024;

__global__ void finish_kernel(const float* products, int64_t outputs, Destination to) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= outputs) return;
  finish_product(to, row, c, products[row * outputs + c]);
}

// sums [rows, width] -> the destination; width is outputs, or twice that when gated.
template <bool kGated>
__global__ void scale_sums_kernel(const int32_t* sums, int64_t width, const float* row_scales,
                                  int64_t outputs, Destination to) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= outputs) return;
  const float row_scale = row_scales[row];
  const auto value_at = [&](int64_t column) {
    return scaled(static_cast<float>(sums[row * width + column]), row_scale, to.scales[column]);
  };
  if constexpr (kGated) {
    finish_gate(to, row, c, add_bias(to, c, value_at(c)),
                add_bias(to, c + outputs, value_at(c + outputs)));
  } else {
    finish_product(to, row, c, value_at(c));
  }
}

__global__ void apply_gate_kernel(Matrix gate_up, Gate of, Matrix out) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x;
  if (c >= out.cols) return;
  const int64_t index = row * gate_up.stride + c;
  const float gate = load_element(gate_up.data, gate_up.dtype, index);
  const float up = load_element(gate_up.data, gate_up.dtype, index + out.cols);
  store_element(out.data, out.dtype, row * out.stride + c,
                gate_value(of.activation, of.limit, gate, up));
}

// A thread for each element: of row blockIdx.x, column blockIdx.y * kElementThreads + threadIdx.x.
Grid elements_grid(int64_t rows, int64_t cols) {
  return {dim3(static_cast<unsigned>(rows), ceil_div(cols, kElementThreads)), kElementThreads};
}

}  // namespace

bool float_product(Matmul& matmul, DeviceBuffer& scratch, const Matrix& x, const Weight& weight,
                   const ProductDestination& to, const Queue& queue) {
  MatmulShape shape;
  shape.m = weight.rows;
  shape.n = x.rows;
  shape.k = weight.cols;
  shape.x_stride = x.stride;
  shape.in = x.dtype;
  if (to.bias == nullptr && to.activation == Activation::none) {
    if (to.dtype != DType::f32 && to.dtype != x.dtype) return false;
    shape.out_stride = to.stride;
    shape.out_f32 = to.dtype == DType::f32;
    shape.add = to.add;
    return matmul.run(shape, x.data, weight.data, to.out, queue.stream);
  }
  // All is done before the result is rounded, as beside few rows.
  shape.out_stride = weight.rows;
  const ScratchPiece piece = finished_piece(x.rows, weight.rows);
  std::byte* memory = scratch.at_least(piece.bytes);
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    shape.n = std::min(piece.rows, x.rows - first);
    const Matrix some = x.row_range(first, shape.n);
    if (!matmul.run(shape, some.data, weight.data, memory, queue.stream)) return false;
    queue.launch("finishing a product", finish_kernel, elements_grid(shape.n, weight.rows),
                 reinterpret_cast<const float*>(memory), weight.rows, to.from_row(first));
  }
  return true;
}

ScratchPiece finished_piece(int64_t rows, int64_t outputs) {
  return piece_of(rows, static_cast<size_t>(outputs) * sizeof(float), kGrain);
}

bool int8_fits(const Matrix& x, const Weight& weight) {
  return x.dtype != DType::f32 && is_integer(weight.format) && weight.rows % kGrain == 0 &&
         weight.cols % kGrain == 0;
}

ScratchPiece int8_piece(int64_t rows, int64_t inputs, int64_t width) {
  const auto row_bytes =
      static_cast<size_t>(width) * sizeof(int32_t) + static_cast<size_t>(inputs) + sizeof(float);
  return piece_of(rows, row_bytes, kGrain, kMaxSumRows);
}

bool int8_product(Matmul& matmul, DeviceBuffer& scratch, const Input& input, const Weight& weight,
                  const ProductDestination& to, bool gated, const Queue& queue) {
  const Matrix& x = input.x;
  const int64_t width = weight.rows;
  const int64_t outputs = gated ? width / 2 : width;
  const ScratchPiece piece = int8_piece(x.rows, weight.cols, width);
  std::byte* memory = scratch.at_least(piece.bytes);
  for (int64_t first = 0; first < x.rows; first += piece.rows) {
    const int64_t rows = std::min(piece.rows, x.rows - first);
    // The rows of the padding are never read back.
    const int64_t padded = (rows + kGrain - 1) / kGrain * kGrain;
    const int64_t sums_bytes = padded * width * 4;
    const int64_t x_bytes = (padded * weight.cols + 255) / 256 * 256;
    auto* sums = reinterpret_cast<int32_t*>(memory);
    auto* quantized = reinterpret_cast<int8_t*>(memory + sums_bytes);
    auto* row_scales = reinterpret_cast<float*>(memory + sums_bytes + x_bytes);

    quantize_rows(row_range(input, first, rows), weight.rotated,
                  {quantized, DType::i8, rows, x.cols}, row_scales, queue);

    MatmulShape shape;
    shape.m = width;
    shape.n = padded;
    shape.k = weight.cols;
    shape.x_stride = weight.cols;
    shape.out_stride = width;
    shape.in = DType::i8;
    // All pieces but the last have the same shape: a refusal comes before anything was written,
    // unless the last piece alone is refused, which no shape of cuBLASLt's rules can cause.
    if (!matmul.run(shape, quantized, weight.data, sums, queue.stream)) return false;

    queue.launch("scaling a product", gated ? scale_sums_kernel<true> : scale_sums_kernel<false>,
                 elements_grid(rows, outputs), sums, width, row_scales, outputs,
                 to.from_row(first));
  }
  return true;
}

void apply_gate(const Matrix& gate_up, const Gate& gate, const Matrix& out, const Queue& queue) {
  queue.launch("applying a gate", apply_gate_kernel, elements_grid(out.rows, out.cols), gate_up,
               gate, out);
}

}  // namespace faststream
