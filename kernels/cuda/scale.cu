// Rows times functions of others, element by element.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kScaleThreads = 128;
constexpr int kScaledEach = 8;  // elements of a thread

// Each factor serves so many columns.
__device__ float factor_at(const Matrix& factors, Activation activation, int64_t row, int c,
                           int each) {
  const int64_t first = factors.rows == 1 ? 0 : row * factors.stride;
  return activate_any(activation, load_element(factors.data, factors.dtype, first + c / each));
}

// Any types, strides and widths.
__global__ void scale_kernel(Matrix factors, Activation activation, Matrix m) {
  begin_kernel();
  const int64_t row = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kScaleThreads * kScaledEach;
  const int each = static_cast<int>(m.cols / factors.cols);
  for (int i = 0; i < kScaledEach; ++i) {
    const int c = first + i * kScaleThreads + static_cast<int>(threadIdx.x);
    if (c >= m.cols) return;
    const int64_t index = row * m.stride + c;
    store_element(
        m.data, m.dtype, index,
        load_element(m.data, m.dtype, index) * factor_at(factors, activation, row, c, each));
  }
}

// Factors of each element, of the same 16-bit type, in rows of whole 16 bytes.
template <typename T>
__global__ void scale_eights_kernel(Matrix factors, Activation activation, Matrix m) {
  begin_kernel();
  const int64_t row = blockIdx.y;
  const int64_t c = (int64_t{blockIdx.x} * kScaleThreads + threadIdx.x) * kScaledEach;
  if (c >= m.cols) return;
  T* at = static_cast<T*>(m.data) + row * m.stride + c;
  float values[kScaledEach];
  float by[kScaledEach];
  load_floats(at, values);
  load_floats(static_cast<const T*>(factors.data) + row * factors.stride + c, by);
  if (activation == Activation::softplus) {
#pragma unroll
    for (float& factor : by) factor = softplus(factor);
  } else {
    activate(activation, by);
  }
#pragma unroll
  for (int i = 0; i < kScaledEach; ++i) values[i] *= by[i];
  store_floats(values, at);
}

bool has_whole_eights(const Matrix& m) {
  return m.cols % kScaledEach == 0 && m.stride % kScaledEach == 0 &&
         reinterpret_cast<uintptr_t>(m.data) % sizeof(uint4) == 0;
}

}  // namespace

void CudaBackend::scale(const Matrix& factors, Activation activation, const Matrix& m) {
  if (m.rows == 0 || step_kernel_.scale(factors, activation, m)) return;
  const auto blocks = static_cast<unsigned>((m.cols + kScaleThreads * kScaledEach - 1) /
                                            (kScaleThreads * kScaledEach));
  const Grid grid{{blocks, static_cast<unsigned>(m.rows)}, kScaleThreads};
  const bool in_eights = factors.rows == m.rows && factors.cols == m.cols &&
                         factors.dtype == m.dtype && has_whole_eights(m) &&
                         has_whole_eights(factors);
  if (in_eights && m.dtype == DType::bf16) {
    queue().launch("scaling rows", scale_eights_kernel<__nv_bfloat16>, grid, factors, activation,
                   m);
  } else if (in_eights && m.dtype == DType::f16) {
    queue().launch("scaling rows", scale_eights_kernel<__half>, grid, factors, activation, m);
  } else {
    queue().launch("scaling rows", scale_kernel, grid, factors, activation, m);
  }
}

}  // namespace faststream
