// Weights that no kernel takes as they are are decoded before each product: int4 to int8 but where
// linear.cu says otherwise, integers beside inputs that keep 16 bits to bf16, and codes of floats
// to the inputs' type. That moves two or four bytes of memory for each element besides those that
// are stored: little beside products of many rows, such as an encoder's.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

constexpr int kWidenThreads = 128;

// A block a row, kEach elements a thread at a time. scales: of rows, null for ones.
template <int kEach, typename Rows, typename T>
__global__ __launch_bounds__(kWidenThreads) void widen_kernel(Rows rows, const float* scales,
                                                              int64_t cols, T* widened) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const float scale = scales != nullptr ? scales[row] : 1;
  for (int64_t c = threadIdx.x * kEach; c < cols; c += kWidenThreads * kEach) {
    float values[kEach];
    rows.template load<kEach>(row, c, values);
    alignas(16) T wide[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if constexpr (sizeof(T) == 1) {
        wide[i] = static_cast<T>(values[i]);
      } else {
        wide[i] = from_float<T>(values[i] * scale);
      }
    }
    T* to = widened + row * cols + c;
    if constexpr (kEach * sizeof(T) == 32) {
      *reinterpret_cast<uint4*>(to) = reinterpret_cast<const uint4*>(wide)[0];
      *reinterpret_cast<uint4*>(to + kEach / 2) = reinterpret_cast<const uint4*>(wide)[1];
    } else if constexpr (kEach * sizeof(T) == 16) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(wide);
    } else if constexpr (kEach * sizeof(T) == 8) {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(wide);
    } else {
      *to = wide[0];
    }
  }
}

__global__ void after_weights_kernel() { wait_for_inputs(); }

template <typename Rows, typename T>
void widen(const Weight& weight, const Queue& queue, const float* scales, T* to) {
  const bool by_eight = weight.cols % 8 == 0;
  queue.launch("widening weights", by_eight ? widen_kernel<8, Rows, T> : widen_kernel<1, Rows, T>,
               {static_cast<unsigned>(weight.rows), kWidenThreads}, Rows(weight), scales,
               weight.cols, to);
}

}  // namespace

WeightFormat widened_format(WeightFormat format, int32_t input_bits, DType act) {
  if (is_coded(format)) return format_of(act);
  if (is_integer(format)) return input_bits == 8 ? WeightFormat::int8 : WeightFormat::bf16;
  return format;
}

// Its kernel does not overlap the ones ahead.
void finish_weights(const Queue& queue) {
  Queue{queue.stream, false}.launch("finishing weights", after_weights_kernel, {1, 1});
}

size_t widened_bytes(WeightFormat widened, int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * row_bytes(widened, cols));
}

Weight CudaBackend::widened(const Weight& weight, DType act) {
  const WeightFormat format = widened_format(weight.format, weight.input_bits, act);
  if (format == weight.format) return weight;
  const Queue queue = this->queue();
  std::byte* to = widened_.at_least(widened_bytes(format, weight.rows, weight.cols));
  Weight wide = weight;
  wide.data = to;
  wide.format = format;
  if (is_coded(weight.format)) {
    with_float_type(act, [&](auto zero) {
      auto* floats = reinterpret_cast<decltype(zero)*>(to);
      if (weight.format == WeightFormat::fp8) {
        widen<E4m3Rows>(weight, queue, nullptr, floats);
      } else {
        widen<CodedRows>(weight, queue, nullptr, floats);
      }
    });
  } else if (format == WeightFormat::int8) {
    widen<Int4Rows>(weight, queue, nullptr, reinterpret_cast<int8_t*>(to));
  } else {
    wide.scales = nullptr;
    auto* floats = reinterpret_cast<__nv_bfloat16*>(to);
    if (weight.format == WeightFormat::int4) {
      widen<Int4Rows>(weight, queue, weight.row_scales(), floats);
    } else {
      widen<StoredRows<int8_t>>(weight, queue, weight.row_scales(), floats);
    }
  }
  finish_weights(queue);
  return wide;
}

}  // namespace faststream
