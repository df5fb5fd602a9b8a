// Rows of weights as a kernel reads them, by format: what a kernel that takes any is specialised
// by.
#pragma once

#include <cuda_fp16.h>

#include "backend/tensor.h"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

/// Elements as they are stored; what row_scales() says of them is left to a product's end.
template <typename T>
struct StoredRows {
  explicit StoredRows(const Weight& weight)
      : data(static_cast<const T*>(weight.data)), cols(weight.cols) {}

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

  /// kCount columns from `first` on, a multiple of kCount, which divides half a group.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    static_assert(kInt4GroupBytes % kCount == 0);
    const auto column = static_cast<int>(first % kInt4Block);
    const int group = column / kInt4Group;
    const int in_group = column % kInt4Group;
    const uint8_t* block = data + row * row_bytes + first / kInt4Block * kInt4BlockBytes;
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

/// Codes of E4M3: the floats.
struct E4m3Rows {
  explicit E4m3Rows(const Weight& weight)
      : data(static_cast<const uint8_t*>(weight.data)),
        row_bytes(weight.row_bytes()),
        code_bytes(e4m3_code_bytes(weight.cols)) {}

  /// kCount columns from `first` on, a multiple of kCount, which divides half a step.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    static_assert(kPackedStep / 2 % kCount == 0);
    const uint8_t* codes = data + row * row_bytes;
    const auto* scales = reinterpret_cast<const float*>(codes + code_bytes);
    const float scale = scales[first / packed_layout(WeightFormat::fp8).group];
    const auto in_step = static_cast<int>(first % kPackedStep);
    codes += first - in_step;
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = e4m3_value(codes[coded_place(in_step + i)]) * scale;
  }

  const uint8_t* data;
  int64_t row_bytes;
  int64_t code_bytes;
};

/// Other codes of floats in groups: the floats.
struct CodedRows {
  explicit CodedRows(const Weight& weight)
      : data(static_cast<const uint8_t*>(weight.data)),
        row_bytes(weight.row_bytes()),
        layout(weight.format) {}

  /// kCount columns from `first` on, a multiple of kCount, which divides half a step.
  template <int kCount>
  __device__ void load(int64_t row, int64_t first, float (&out)[kCount]) const {
    static_assert(kPackedStep / 2 % kCount == 0);
    const uint8_t* block = data + row * row_bytes + first / kPackedBlock * layout.block_bytes;
    const auto column = static_cast<int>(first % kPackedBlock);
    const int step = column / kPackedStep;
    const int in_step = column % kPackedStep;
    const DeviceGroup group(layout.format, layout, block, step);
    const uint8_t* elements = block + layout.described_bytes + step * layout.step_bytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      out[i] = (value_of(elements, in_step + i) - group.zero) * group.scale;
    }
  }

  __device__ float value_of(const uint8_t* elements, int column) const {
    if (layout.format == WeightFormat::mxfp4) {
      return E2m1Word::value(reinterpret_cast<const uint32_t*>(elements), column);
    }
    constexpr int kHalf = kPackedStep / 2;
    const uint32_t code = elements[coded_place(column % kHalf)] >> (column < kHalf ? 0 : 4) & 15U;
    if (layout.format == WeightFormat::nf4) return nf4_value(code);
    return four_bits_value(code);
  }

  const uint8_t* data;
  int64_t row_bytes;
  CodedLayout layout;
};

/// One element of rows of any format.
template <typename Rows>
__device__ float element(const Rows& rows, int64_t row, int64_t column) {
  float value[1];
  rows.template load<1>(row, column, value);
  return value[0];
}

/// Calls f with the rows of a weight of any format, for element after element.
template <typename F>
void with_weight_rows(const Weight& weight, const F& f) {
  if (weight.format == WeightFormat::int4) return f(Int4Rows(weight));
  if (weight.format == WeightFormat::fp8) return f(E4m3Rows(weight));
  if (is_coded(weight.format)) return f(CodedRows(weight));
  with_weight_type(weight.stored_as(), [&](auto zero) { f(StoredRows<decltype(zero)>(weight)); });
}

}  // namespace faststream
