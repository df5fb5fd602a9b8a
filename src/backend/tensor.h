// Views of the matrices that backends work on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/dtype.h"

namespace faststream {

/// A matrix in a backend's memory, row-major: element (r, c) is `data[r * stride + c]`. Owns
/// nothing.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  ///< elements from a row to the next; at least cols

  Matrix() = default;
  /// Rows without gaps.
  Matrix(void* memory, DType type, int64_t n_rows, int64_t n_cols)
      : data(memory), dtype(type), rows(n_rows), cols(n_cols), stride(n_cols) {}

  /// Columns [first, first + count), the same rows.
  [[nodiscard]] Matrix columns(int64_t first, int64_t count) const {
    Matrix view = *this;
    view.data = static_cast<std::byte*>(data) + static_cast<size_t>(first) * dtype_size(dtype);
    view.cols = count;
    return view;
  }
  /// Rows [first, first + count), the same columns.
  [[nodiscard]] Matrix row_range(int64_t first, int64_t count) const {
    Matrix view = *this;
    view.data =
        static_cast<std::byte*>(data) + static_cast<size_t>(first * stride) * dtype_size(dtype);
    view.rows = count;
    return view;
  }
  [[nodiscard]] Matrix first_rows(int64_t count) const { return row_range(0, count); }
};

/// A model's weight matrix as the model file stores it: [rows = out, cols = in], input-contiguous
/// without gaps, read-only, 64-byte aligned. dtype f32, f16, bf16, or i8: then row r means
/// `scales[r] * data[r, :]`.
struct Weight {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* scales = nullptr;  ///< [rows], i8 only
  int32_t input_bits = 8;         ///< i8 only: of what it is multiplied with, 8 or 16
  /// i8 of 8 input_bits only: rows are rotated (support/hadamard.h), and so is what they are
  /// multiplied with before it is rounded.
  bool rotated = false;

  /// Bytes from a row to the next.
  [[nodiscard]] int64_t row_bytes() const { return cols * static_cast<int64_t>(dtype_size(dtype)); }
  [[nodiscard]] const std::byte* row(int64_t r) const {
    return static_cast<const std::byte*>(data) + r * row_bytes();
  }
  /// Rows [first, first + count), with what belongs to them.
  [[nodiscard]] Weight row_range(int64_t first, int64_t count) const {
    Weight some = *this;
    some.data = row(first);
    some.rows = count;
    if (scales != nullptr) some.scales = scales + first;
    return some;
  }
  /// Element (r, c), of what may be rotated.
  [[nodiscard]] double value(int64_t r, int64_t c) const {
    const double element = load_as_float(row(r), dtype, static_cast<size_t>(c));
    return scales != nullptr ? element * scales[r] : element;
  }

  /// Products quantize their inputs, as Backend::linear() says.
  [[nodiscard]] bool quantizes_inputs() const { return dtype == DType::i8 && input_bits == 8; }
};

}  // namespace faststream
