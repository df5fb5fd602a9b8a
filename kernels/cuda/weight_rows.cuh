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

/// Integers of groups (support/weight_format.h), without the scales of their rows.
struct Int4Rows {
  explicit Int4Rows(const Weight& weight)
      : data(static_cast<const uint8_t*>(weight.data)), row_bytes(weight.row_bytes()) {}

  __device__ float at(int64_t row, int64_t column) const {
    float value[1];
    load<1>(row, column, value);
    return value[0];
  }

  /// kCount columns from `first` on, a multiple of kCount, which divides half a group.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    static_assert(kInt4GroupBytes % kCount == 0);
    constexpr int kBlockBytes = static_cast<int>(kInt4CodeBytes + kInt4Block / 2);
    const auto column = static_cast<int>(first % kInt4Block);
    const int group = column / kInt4Group;
    const int in_group = column % kInt4Group;
    const uint8_t* block = data + row * row_bytes + first / kInt4Block * kBlockBytes;
    const uint8_t* from =
        block + kInt4CodeBytes + group * kInt4GroupBytes + in_group % kInt4GroupBytes;
    uint8_t bytes[kCount];
    if constexpr (kCount == 8) {
      *reinterpret_cast<uint2*>(bytes) = *reinterpret_cast<const uint2*>(from);
    } else {
      memcpy(bytes, from, kCount);
    }
    const Int4Levels levels(static_cast<std::byte>(block[group]));
    const int shift = in_group < kInt4GroupBytes ? 0 : 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      out[i] = static_cast<float>(levels[bytes[i] >> shift & 15]);
    }
  }

  const uint8_t* data;
  int64_t row_bytes;
};

/// Calls f with the rows of a weight of any format, for element after element.
template <typename F>
void with_weight_rows(const Weight& weight, const F& f) {
  if (weight.format == WeightFormat::int4) return f(Int4Rows(weight));
  with_weight_type(weight.stored_as(), [&](auto zero) { f(StoredRows<decltype(zero)>(weight)); });
}

}  // namespace faststream
