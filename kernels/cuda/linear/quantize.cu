// Rows of activations to eight bits, one block a row, with the norm before where it is still to be
// applied. Of rows of a usual length all is on its way at once, and stays in registers; others are
// read twice, the second time from the L1 cache.
//
// Bytes: a row of 4,096 f32 with its norm 20 kB: 2,048 of them 14 us at 3.07 TB/s.
#include "kernels/cuda/linear/quantize.h"

#include <cstdint>
#include <stdexcept>

#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/held_row.cuh"
#include "support/weight_format.h"

namespace faststream {

namespace {

// Of many short rows more are on their way where fewer threads have one: 12,288 rows of 1,408 took
// 35 us by blocks of 512, two thirds of which had nothing.
constexpr int kShortRowThreads = 128;
constexpr int64_t kShortRow = 2 * kShortRowThreads * kHeldEach;
constexpr int64_t kManyShortRows = 512;
// Of a few long rows: 8 of 14,336 take 3.3 us, by kRowLanes 5.1. Beside 128 a layer takes 2 us
// more.
constexpr int64_t kFewLongRows = 64;
constexpr int kLongRowThreads = 1024;
constexpr int kLongRowTurns = 2;
constexpr int64_t kLongRow = int64_t{kLongRowTurns} * kLongRowThreads * kHeldEach;

__device__ void store_quantized(int8_t* to, const float (&values)[kHeldEach], float inverse) {
  const auto four = [&](int i) {
    const float part[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    return quantized(part, inverse);
  };
  *reinterpret_cast<uint2*>(to) = make_uint2(four(0), four(4));
}
__device__ void store_quantized(__nv_bfloat16* to, const float (&values)[kHeldEach],
                                float inverse) {
  float integers[kHeldEach];
#pragma unroll
  for (int i = 0; i < kHeldEach; ++i) integers[i] = QuantizedValue(values[i], inverse).as_float();
  store_eight(to, integers);
}

/// A code of E4M3, in a row whose codes are where those of a coded weight are (coded_place()).
struct E4m3 {
  uint8_t code;
};
__device__ void store_quantized(E4m3* to, const float (&values)[kHeldEach], float inverse) {
  *reinterpret_cast<uint2*>(to) = e4m3_codes(values, inverse);
}
template <typename Out>
__device__ RowScale row_scale_of() {
  return std::is_same_v<Out, E4m3> ? RowScale(kLargestE4m3) : RowScale();
}

template <typename T, int kTurns, int kThreads, typename Out>
__device__ void quantize_held(const HeldRow<T, kTurns, kThreads>& row, int n,
                              RowTeam<kThreads>& team, Out* out, float* row_scale) {
  RowScale scale = row_scale_of<Out>();
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    scale.see(row.pieces);
  } else {
    row.for_each(n, [&](int /*turn*/, int /*c*/, const float(&values)[kHeldEach]) {
#pragma unroll
      for (const float value : values) scale.see(value);
    });
  }
  scale.join(team);
  if (threadIdx.x == 0) *row_scale = scale.scale();
  const float inverse = scale.inverse();
  row.for_each(n, [&](int /*turn*/, int c, const float(&values)[kHeldEach]) {
    store_quantized(out + c, values, inverse);
  });
}

template <int kTurns, int kThreads>
__device__ void rotate(HeldRow<__nv_bfloat16, kTurns, kThreads>& row, int n) {
  const int in_warp = static_cast<int>(threadIdx.x) % kWarp * kHeldEach;
  Hadamard().rotate(row.pieces, [&](int turn) { return n - row.column(turn) + in_warp; });
}

template <typename T, int kTurns, int kThreads, typename Out>
__global__ __launch_bounds__(kThreads) void quantize_held_kernel(const T* x, int64_t stride, int n,
                                                                 bool rotated, Out* out,
                                                                 float* scales) {
  __shared__ typename RowTeam<kThreads>::Parts parts;
  begin_kernel();
  HeldRow<T, kTurns, kThreads> row;
  row.load(x + blockIdx.x * stride, n);
  RowTeam<kThreads> team{static_cast<int>(threadIdx.x), 0, parts};
  out += static_cast<int64_t>(blockIdx.x) * n;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (rotated) rotate(row, n);
  } else if (rotated) {
    HeldRow<__nv_bfloat16, kTurns, kThreads> rounded;
    row.for_each(n, [&](int turn, int /*c*/, const float(&values)[kHeldEach]) {
      rounded.set(turn, values);
    });
    rotate(rounded, n);
    return quantize_held(rounded, n, team, out, &scales[blockIdx.x]);
  }
  quantize_held(row, n, team, out, &scales[blockIdx.x]);
}

// kUsual: an RMS norm.
template <int kTurns, bool kUsual, typename Out>
__global__ __launch_bounds__(kRowLanes) void normalize_and_quantize_kernel(
    const float* x, int64_t stride, Norm norm, int n, bool rotated, Out* out, float* scales) {
  __shared__ RowParts parts;
  allow_next_kernel();
  HeldRow<float, kTurns> weights;
  if (kUsual) {
    norm.kind = NormKind::rms;
    norm.bias = nullptr;
    weights.load(norm.weight, n);
  }
  wait_for_inputs();
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  HeldRow<float, kTurns> row;
  row.load(x + blockIdx.x * stride, n);
  const MeasuredNorm measured = row.measured(n, norm, team);
  HeldRow<__nv_bfloat16, kTurns> normed;  // as norm() would write it
  row.for_each(n, [&](int turn, int c, float(&values)[kHeldEach]) {
    if (kUsual) {
      normalize_eight(measured, weights.eight(turn), values);
    } else {
      normalize_eight(measured, c, values);
    }
    normed.set(turn, values);
  });
  if (rotated) rotate(normed, n);
  quantize_held(normed, n, team, out + static_cast<int64_t>(blockIdx.x) * n, &scales[blockIdx.x]);
}

// Rows of any length that begin anywhere.
template <typename T, bool kRotated, typename Out>
__global__ __launch_bounds__(kRowLanes) void quantize_any_kernel(const T* x, int64_t stride,
                                                                 int64_t n, Out* out,
                                                                 float* scales) {
  __shared__ RowParts parts;
  begin_kernel();
  x += blockIdx.x * stride;
  out += blockIdx.x * n;
  const auto value = [&](int64_t c) {
    if constexpr (kRotated) return rotated_column(x, n, c);
    return to_float(x[c]);
  };
  RowScale scale = row_scale_of<Out>();
  for (int64_t c = threadIdx.x; c < n; c += kRowLanes) scale.see(value(c));
  RowTeam<kRowLanes> team{static_cast<int>(threadIdx.x), 0, parts};
  scale.join(team);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale();
  const float inverse = scale.inverse();
  for (int64_t c = threadIdx.x; c < n; c += kRowLanes) {
    if constexpr (std::is_same_v<Out, E4m3>) {
      out[coded_place(c)].code = static_cast<uint8_t>(two_e4m3(value(c) * inverse, 0));
      continue;
    }
    const QuantizedValue quantized(value(c), inverse);
    if constexpr (std::is_same_v<Out, int8_t>) {
      out[c] = static_cast<int8_t>(quantized.bits());
    } else if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
      out[c] = from_float<Out>(quantized.as_float());
    }
  }
}

template <typename T>
__global__ __launch_bounds__(kRowLanes) void rotate_kernel(const T* x, int64_t stride, int64_t n,
                                                           float* to) {
  begin_kernel();
  x += blockIdx.x * stride;
  to += blockIdx.x * n;
  for (int64_t c = threadIdx.x; c < n; c += kRowLanes) to[c] = rotated_column(x, n, c);
}

// Rows that are longer than those of norms: what the feed-forwards of the largest models are left
// with.
constexpr int kLongTurns = 2 * kMaxHeldTurns;

bool can_hold_long(const Matrix& x) {
  return rows_begin_at_16(x.data, x.stride, x.dtype) && x.cols % kHeldEach == 0 &&
         x.cols <= kLongTurns * kRowLanes * kHeldEach;
}

template <typename Out>
void launch(const Input& input, bool rotated, Out* out, float* scales, const Queue& queue) {
  const Matrix& x = input.x;
  Grid grid{static_cast<unsigned>(x.rows), kRowLanes};
  const auto run = [&](auto kernel, auto... arguments) {
    queue.launch("quantizing activations", kernel, grid, arguments..., out, scales);
  };
  const auto n = static_cast<int>(x.cols);
  if (!input.is_ready()) {
    const auto* rows = static_cast<const float*>(x.data);
    with_held_turns(n, [&]<int kTurns>() {
      run(input.norm.kind == NormKind::rms ? normalize_and_quantize_kernel<kTurns, true, Out>
                                           : normalize_and_quantize_kernel<kTurns, false, Out>,
          rows, x.stride, input.norm, n, rotated);
    });
    return;
  }
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* rows = static_cast<const T*>(x.data);
    const bool rotates = !rotated || can_rotate(x.cols);
    const bool is_long = x.cols > kLongRow / 2 && x.cols <= kLongRow && x.rows <= kFewLongRows;
    if (rotates && is_long && can_hold_long(x)) {
      grid.threads = kLongRowThreads;
      return run(quantize_held_kernel<T, kLongRowTurns, kLongRowThreads, Out>, rows, x.stride, n,
                 rotated);
    }
    if (rotates && !can_hold(x) && can_hold_long(x)) {
      return run(quantize_held_kernel<T, kLongTurns, kRowLanes, Out>, rows, x.stride, n, rotated);
    }
    if (rotates && can_hold(x)) {
      if (x.rows >= kManyShortRows && x.cols <= kShortRow) {
        grid.threads = kShortRowThreads;
        run(x.cols <= kShortRow / 2 ? quantize_held_kernel<T, 1, kShortRowThreads, Out>
                                    : quantize_held_kernel<T, 2, kShortRowThreads, Out>,
            rows, x.stride, n, rotated);
        return;
      }
      with_held_turns(n, [&]<int kTurns>() {
        run(quantize_held_kernel<T, kTurns, kRowLanes, Out>, rows, x.stride, n, rotated);
      });
    } else {
      run(rotated ? quantize_any_kernel<T, true, Out> : quantize_any_kernel<T, false, Out>, rows,
          x.stride, x.cols);
    }
  });
}

}  // namespace

bool can_quantize(const Input& input, bool rotated) {
  const Matrix& x = input.x;
  return input.is_ready() ||
         (x.dtype == DType::f32 && input.normed.dtype == DType::bf16 && can_hold(x) &&
          can_hold(input.norm) && (!rotated || can_rotate(x.cols)));
}

bool rounds_to_e4m3(const Weight& weight) {
  return weight.format == WeightFormat::fp8 && weight.cols % kPackedStep == 0;
}

Input row_range(const Input& input, int64_t first, int64_t count) {
  Input rows = input;
  rows.x = input.x.row_range(first, count);
  if (!input.is_ready()) rows.normed = input.normed.row_range(first, count);
  return rows;
}

void quantize_rows(const Input& input, bool rotated, const Matrix& integers, float* scales,
                   const Queue& queue) {
  switch (integers.dtype) {
    case DType::i8:
      return launch(input, rotated, static_cast<int8_t*>(integers.data), scales, queue);
    case DType::bf16:
      return launch(input, rotated, static_cast<__nv_bfloat16*>(integers.data), scales, queue);
    case DType::u8:
      return launch(input, rotated, static_cast<E4m3*>(integers.data), scales, queue);
    case DType::f32:
    case DType::f16:
    case DType::packed:
      break;
  }
  throw std::logic_error("quantize_rows: neither eight bits nor bf16");
}

ScratchPiece eight_bits_piece(int64_t rows, int64_t inputs) {
  constexpr int64_t kGrain = 256;  // the largest tile's rows
  return piece_of(rows, static_cast<size_t>(inputs) + sizeof(float), kGrain);
}

size_t rows_for_bytes(int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows * columns) * sizeof(float);
}

Matrix rows_for(const Matrix& x, const Weight& weight, DeviceBuffer& memory, const Queue& queue) {
  if (!weight.rotated) return x;
  const Matrix rotated(memory.at_least(rows_for_bytes(x.rows, x.cols)), DType::f32, x.rows, x.cols);
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    queue.launch("rotating activations", rotate_kernel<T>,
                 {static_cast<unsigned>(x.rows), kRowLanes}, static_cast<const T*>(x.data),
                 x.stride, x.cols, static_cast<float*>(rotated.data));
  });
  return rotated;
}

}  // namespace faststream
