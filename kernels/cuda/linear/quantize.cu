// Rows of activations to eight bits, one block a row. The second pass finds the row in the L1
// cache.
#include "kernels/cuda/linear/quantize.h"

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = kRowLanes;
constexpr int kWide = 8;  // elements of a 16-byte load

__device__ void store(const int (&integers)[1], int8_t* out) {
  *out = static_cast<int8_t>(integers[0]);
}
__device__ void store(const int (&integers)[1], __nv_bfloat16* out) {
  *out = from_float<__nv_bfloat16>(static_cast<float>(integers[0]));
}
__device__ void store(const int (&integers)[kWide], int8_t* out) {
  int8_t bytes[kWide];
#pragma unroll
  for (int i = 0; i < kWide; ++i) bytes[i] = static_cast<int8_t>(integers[i]);
  uint2 packed;
  memcpy(&packed, bytes, sizeof packed);
  *reinterpret_cast<uint2*>(out) = packed;
}
__device__ void store(const int (&integers)[kWide], __nv_bfloat16* out) {
  uint32_t pairs[kWide / 2];
#pragma unroll
  for (int i = 0; i < kWide; i += 2) {
    pairs[i / 2] = pack_pair<__nv_bfloat16>(static_cast<float>(integers[i]),
                                            static_cast<float>(integers[i + 1]));
  }
  *reinterpret_cast<uint4*>(out) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/// n is a multiple of kVector, and rows of x start at multiples of so many elements.
template <int kVector, typename T, typename Out>
__global__ __launch_bounds__(kThreads) void quantize_rows_kernel(const T* x, int64_t stride,
                                                                 int64_t n, Out* out,
                                                                 float* scales) {
  __shared__ RowParts parts;
  begin_kernel();
  x += blockIdx.x * stride;
  out += blockIdx.x * n;
  const auto first = static_cast<int64_t>(threadIdx.x) * kVector;
  RowScale scale;
  for (int64_t c = first; c < n; c += kThreads * kVector) {
    float values[kVector];
    load_floats(x + c, values);
#pragma unroll
    for (const float value : values) scale.see(value);
  }
  RowTeam<kThreads> team{static_cast<int>(threadIdx.x), 0, parts};
  scale.join(team);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale();
  const float inverse = scale.inverse();
  for (int64_t c = first; c < n; c += kThreads * kVector) {
    float values[kVector];
    load_floats(x + c, values);
    int integers[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) integers[i] = quantized(values[i], inverse);
    store(integers, out + c);
  }
}

}  // namespace

void quantize_rows(const Matrix& x, const Matrix& integers, float* scales, const Queue& queue) {
  const Grid grid{static_cast<unsigned>(x.rows), kThreads};
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* from = static_cast<const T*>(x.data);
    const bool wide = reinterpret_cast<uintptr_t>(from) % (kWide * sizeof(T)) == 0 &&
                      x.stride % kWide == 0 && x.cols % kWide == 0;
    const auto launch = [&](auto* to) {
      using Out = std::remove_pointer_t<decltype(to)>;
      queue.launch("quantizing activations",
                   wide ? quantize_rows_kernel<kWide, T, Out> : quantize_rows_kernel<1, T, Out>,
                   grid, from, x.stride, x.cols, to, scales);
    };
    switch (integers.dtype) {
      case DType::i8:
        return launch(static_cast<int8_t*>(integers.data));
      case DType::bf16:
        return launch(static_cast<__nv_bfloat16*>(integers.data));
      case DType::f32:
      case DType::f16:
      case DType::u8:
        break;
    }
    throw std::logic_error("quantize_rows: neither i8 nor bf16");
  });
}

}  // namespace faststream
