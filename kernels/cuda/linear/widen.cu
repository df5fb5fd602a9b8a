// Weights of formats that have no kernels here, and int8 beside inputs that keep 16 bits: decoded
// to bf16 before each product, which is then one of 16-bit matrices. That moves four bytes of
// memory for each element besides those that are stored: little beside products of many rows, such
// as an encoder's.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 128;

// A block a row, kEach elements a thread at a time.
template <int kEach, typename Rows>
__global__ __launch_bounds__(kThreads) void widen_kernel(Rows rows, int64_t cols,
                                                         __nv_bfloat16* widened) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x * kEach; c < cols; c += kThreads * kEach) {
    float values[kEach];
    rows.template load<kEach>(row, c, values);
    alignas(2 * kEach) __nv_bfloat16 wide[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) wide[i] = from_float<__nv_bfloat16>(values[i]);
    __nv_bfloat16* to = widened + row * cols + c;
    if constexpr (kEach == 8) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(wide);
    } else {
      *to = wide[0];
    }
  }
}

__global__ void after_weights_kernel() { wait_for_inputs(); }

template <typename Rows>
void widen(const Weight& weight, const Queue& queue, __nv_bfloat16* to) {
  const bool by_eight = weight.cols % 8 == 0;
  queue.launch("widening weights", by_eight ? widen_kernel<8, Rows> : widen_kernel<1, Rows>,
               {static_cast<unsigned>(weight.rows), kThreads}, Rows(weight), weight.cols, to);
}

}  // namespace

bool is_widened(WeightFormat format, int32_t input_bits) {
  return format == WeightFormat::int4 || (format == WeightFormat::int8 && input_bits == 16);
}

// Its kernel does not overlap the ones ahead.
void finish_weights(const Queue& queue) {
  Queue{queue.stream, false}.launch("finishing weights", after_weights_kernel, {1, 1});
}

size_t widened_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * cols) * sizeof(__nv_bfloat16);
}

Weight CudaBackend::widened(const Weight& weight) {
  if (!is_widened(weight.format, weight.input_bits)) return weight;
  const Queue queue = this->queue();
  auto* to =
      reinterpret_cast<__nv_bfloat16*>(widened_.at_least(widened_bytes(weight.rows, weight.cols)));
  if (weight.format == WeightFormat::int4) {
    widen<Int4Rows>(weight, queue, to);
  } else {
    widen<Int8Rows>(weight, queue, to);
  }
  finish_weights(queue);
  return {.data = to, .format = WeightFormat::bf16, .rows = weight.rows, .cols = weight.cols};
}

}  // namespace faststream
