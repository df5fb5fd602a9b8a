// Rows of weights as a kernel reads them, by format: what a kernel that takes any is specialised
// by.
#pragma once

#include <cuda_fp16.h>

#include "backend/tensor.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// Elements as they are stored; what row_scales() says of them is left to a product's end.
template <typename T>
struct StoredRows {
  explicit StoredRows(const Weight& weight)
      : data(static_cast<const T*>(weight.data)), cols(weight.cols) {}

  __device__ float at(int64_t row, int64_t column) const {
    return to_float(data[row * cols + column]);
  }

  /// kCount columns from `first` on, both and all columns multiples of kCount.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    load_floats<kCount>(data + row * cols + first, out);
  }

  const T* data;
  int64_t cols;
};

/// Eight-bit elements times the scales of their rows.
struct Int8Rows {
  explicit Int8Rows(const Weight& weight)
      : data(static_cast<const int8_t*>(weight.data)),
        scales(weight.row_scales()),
        cols(weight.cols) {}

  /// kCount columns from `first` on, a multiple of kCount.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    load_floats<kCount>(data + row * cols + first, out);
    const float scale = scales[row];
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] *= scale;
  }

  const int8_t* data;
  const float* scales;
  int64_t cols;
};

/// Four-bit elements times the scales of their groups.
struct Int4Rows {
  explicit Int4Rows(const Weight& weight)
      : data(static_cast<const uint8_t*>(weight.data)),
        scales(static_cast<const __half*>(weight.scales)),
        groups(scale_shape(weight.format, weight.cols).columns) {}

  __device__ float at(int64_t row, int64_t column) const {
    float value[1];
    load<1>(row, column, value);
    return value[0];
  }

  /// kCount columns from `first` on, a multiple of kCount, which divides half a group.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    constexpr int kHalf = kInt4Group / 2;
    static_assert(kHalf % kCount == 0);
    const int64_t group = row * groups + first / kInt4Group;
    const auto column = static_cast<int>(first % kInt4Group);
    const float scale = to_float(scales[group]);
    const uint8_t* from = data + group * kHalf + column % kHalf;
    uint8_t bytes[kCount];
    if constexpr (kCount == 8) {
      *reinterpret_cast<uint2*>(bytes) = *reinterpret_cast<const uint2*>(from);
    } else {
      memcpy(bytes, from, kCount);
    }
    const int shift = column < kHalf ? 0 : 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      out[i] = scale * static_cast<float>((bytes[i] >> shift & 15) - 8);
    }
  }

  const uint8_t* data;
  const __half* scales;
  int64_t groups;
};

/// Calls f with the rows of a weight of any format, for element after element.
template <typename F>
void with_weight_rows(const Weight& weight, const F& f) {
  if (weight.format == WeightFormat::int4) return f(Int4Rows(weight));
  with_weight_type(weight.stored_as(), [&](auto zero) { f(StoredRows<decltype(zero)>(weight)); });
}

}  // namespace faststream
