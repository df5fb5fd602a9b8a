// What the linear kernels share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/linear/tiling.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"
#include "support/dtype.h"

namespace faststream {

/// Where a product goes: out[row, column] = or += activation(product · scales[column] +
/// bias[column]). Null scales are ones, null biases zeros.
struct Destination {
  void* out = nullptr;
  DType dtype = DType::f32;
  float gate_limit = kUsualGateLimit;  ///< see Gate
  int64_t stride = 0;
  const float* scales = nullptr;  ///< one for each row of the weight, as biases
  const float* bias = nullptr;
  bool add = false;
  Activation activation = Activation::none;
};
static_assert(sizeof(Destination) == 48, "it is in instructions, which have no room");

/// The same of kernels of one operation, which may put what they make in two places.
struct ProductDestination : Destination {
  void* far = nullptr;    ///< where it goes besides, on another GPU; null: nowhere
  bool is_share = false;  ///< see OutputMode

  ProductDestination() = default;
  ProductDestination(const Destination& to) : Destination(to) {}

  /// The destination of the rows from `first` on.
  [[nodiscard]] ProductDestination from_row(int64_t first) const {
    ProductDestination rows = *this;
    rows.move(first * stride);
    return rows;
  }
  /// The destination of the columns from `first` on.
  [[nodiscard]] ProductDestination from_column(int64_t first) const {
    ProductDestination columns = *this;
    columns.move(first);
    if (scales != nullptr) columns.scales += first;
    if (bias != nullptr) columns.bias += first;
    return columns;
  }

 private:
  void move(int64_t elements) {
    const auto bytes = static_cast<size_t>(elements) * dtype_size(dtype);
    out = static_cast<std::byte*>(out) + bytes;
    if (far != nullptr) far = static_cast<std::byte*>(far) + bytes;
  }
};

/// What a kernel for few rows multiplies: x [rows, inputs] · weightᵀ.
struct Product {
  const void* x = nullptr;
  int64_t x_stride = 0;               ///< elements
  const float* row_scales = nullptr;  ///< of quantized rows of x
  int rows = 0;
  const void* weight = nullptr;
  int64_t outputs = 0;  ///< of the result: half the weight's rows when gated
  int64_t inputs = 0;
  ProductDestination to;
};

/// Rows [first, first + count) of x, as many as there are, times weight. `to` is of x's first row.
inline Product product_of(const Matrix& x, int64_t first, int64_t count, const Weight& weight,
                          const ProductDestination& to, bool gated) {
  const Matrix rows = x.row_range(first, std::min(count, x.rows - first));
  return {.x = rows.data,
          .x_stride = rows.stride,
          .rows = static_cast<int>(rows.rows),
          .weight = weight.data,
          .outputs = gated ? weight.rows / 2 : weight.rows,
          .inputs = weight.cols,
          .to = to.from_row(first)};
}

/// Whether all rows begin at multiples of 16 bytes. stride: elements.
inline bool rows_begin_at_16(const void* data, int64_t stride, DType type) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
         static_cast<size_t>(stride) * dtype_size(type) % 16 == 0;
}

/// Rows that the tensor core kernels take in one pass over the weights.
inline constexpr int64_t kMaxFewRows = 16;

/// Whether few_rows_product can run: 16-bit x, weights of x's type (or i8 with bf16), and rows of
/// both that start at multiples of 16 bytes.
bool few_rows_fit(const Matrix& x, const Weight& weight);

/// What few_rows_product() quantizes at a time beside i8 weights; beside others it takes no
/// scratch.
ScratchPiece few_rows_piece(int64_t rows, int64_t inputs);

/// x [rows, in] · weightᵀ on the tensor cores. If `gated`, weight is gate_up and the result is
/// activation(gate) · up with half as many columns. Beside i8 weights, x is quantized as
/// int8_product() does it, into `scratch`, and taken kMaxFewRows rows in a pass over the weights;
/// beside others it has at most kMaxFewRows rows. The input: can_quantize() beside i8 weights, else
/// ready.
void few_rows_product(const Input& input, const Weight& weight, const ProductDestination& to,
                      bool gated, DeviceBuffer& scratch, const Queue& queue);

/// Before the first few_rows_product() on the current device.
void prepare_in_order_products();

/// The part of few_rows_product for 16-bit weights, of type `type`. Of more rows than
/// few_rows_product() takes, kMaxFewRows of them in a pass over the weights.
void in_order_product(const Product& product, DType type, bool gated, const Queue& queue);

/// Rows of x that meet one of several weights each, in device memory.
struct RowTiles {
  const int32_t* x_rows = nullptr;  ///< the row of x of each row of the result; null: the same
  const RowTile* tiles = nullptr;   ///< of rows of the result; null: all meet the one weight
  const int32_t* n_tiles = nullptr;
  int32_t max_tiles = 0;
};

/// Rows of x that few_coded_product() takes in one pass over the weights.
inline constexpr int32_t kFewCodedRows = 16;

/// Whether few_coded_product() takes a weight, of experts that of one, where
/// coded_product_fits() or warpgroups_fit().
bool few_codes_fit(const Weight& weight);

/// x [rows, in] · weightᵀ for codes of floats, but fp8, and bf16 x whose rows begin at multiples of
/// 16 bytes, on Hopper. With tiles, of at most kFewCodedRows rows each, `weight` is those of
/// experts, one below the other. If `gated`, as in few_rows_product.
void few_coded_product(const Product& product, const Weight& weight, bool gated,
                       const RowTiles& tiles, const Queue& queue);

/// The part of any_rows_product() for many rows of x, of type `type`, and f32 weights, rows of both
/// at multiples of 16 bytes and inputs that are a multiple of eight.
void float_tiles_product(const Product& product, DType type, const Queue& queue);

/// The same (ungated) for any number of rows, any types and any alignment: float arithmetic, one
/// pass over the weights for each eight rows, or more where many rows meet f32 weights. An output's
/// sum has one order for all numbers of rows.
void any_rows_product(const Matrix& x, const Weight& weight, const ProductDestination& to,
                      const Queue& queue);

}  // namespace faststream
