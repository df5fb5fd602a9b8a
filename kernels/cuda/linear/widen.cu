// i8 weights beside inputs that keep 16 bits: widened to bf16 before each product, which is then
// one of 16-bit matrices. 3 bytes of memory for each element: little beside products of many rows,
// such as an encoder's, and the weights occupy one byte an element.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 128;

// A block a row, kEach elements a thread at a time.
template <int kEach>
__global__ __launch_bounds__(kThreads) void widen_kernel(const int8_t* weights, const float* scales,
                                                         int64_t cols, __nv_bfloat16* widened) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const float scale = scales[row];
  for (int64_t c = row * cols + threadIdx.x * kEach; c < (row + 1) * cols; c += kThreads * kEach) {
    float values[kEach];
    load_floats<kEach>(weights + c, values);
    alignas(2 * kEach) __nv_bfloat16 wide[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) wide[i] = from_float<__nv_bfloat16>(scale * values[i]);
    if constexpr (kEach == 8) {
      *reinterpret_cast<uint4*>(widened + c) = *reinterpret_cast<const uint4*>(wide);
    } else {
      widened[c] = wide[0];
    }
  }
}

__global__ void after_widening_kernel() { wait_for_inputs(); }

}  // namespace

size_t widened_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * cols) * sizeof(__nv_bfloat16);
}

Weight CudaBackend::widened(const Weight& weight) {
  if (weight.dtype != DType::i8 || weight.quantizes_inputs()) return weight;
  const Queue queue = this->queue();
  auto* to =
      reinterpret_cast<__nv_bfloat16*>(widened_.at_least(widened_bytes(weight.rows, weight.cols)));
  const bool by_eight = weight.cols % 8 == 0;
  queue.launch("widening weights", by_eight ? widen_kernel<8> : widen_kernel<1>,
               {static_cast<unsigned>(weight.rows), kThreads},
               static_cast<const int8_t*>(weight.data), weight.scales, weight.cols, to);
  // Kernels read weights before they wait for the kernel ahead. This one does not overlap, so that
  // whatever follows it finds the weights there.
  Queue{queue.stream, false}.launch("widening weights", after_widening_kernel, {1, 1});
  return {.data = to, .dtype = DType::bf16, .rows = weight.rows, .cols = weight.cols};
}

}  // namespace faststream
