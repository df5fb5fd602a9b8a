// Views of the matrices that backends work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "support/dtype.h"
#include "support/weight_format.h"

namespace faststream {

/// A matrix in a backend's memory, row-major: element (r, c) is `data[r * stride + c]`. Owns
/// nothing.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  ///< elements from a row to the next; at least cols, but see repeated()

  Matrix() = default;
  /// Rows without gaps.
  Matrix(void* memory, DType type, int64_t n_rows, int64_t n_cols)
      : data(memory), dtype(type), rows(n_rows), cols(n_cols), stride(n_cols) {}

  /// `n_rows` times the same row [n_cols] of f32, to be read by Backend::norm() alone: stride 0.
  static Matrix repeated(const float* row, int64_t n_rows, int64_t n_cols) {
    Matrix rows(const_cast<float*>(row), DType::f32, n_rows, n_cols);
    rows.stride = 0;
    return rows;
  }

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

/// A model's weight matrix as the model file stores it: [rows = out, cols = in] of a format, rows
/// without gaps, read-only, 64-byte aligned.
struct Weight {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* scales = nullptr;  ///< of the formats that have some: scale_shape() for each row
  int32_t input_bits = 8;        ///< integers only: of what it is multiplied with, 8 or 16
  /// Integers of 8 input_bits only: rows are rotated (support/hadamard.h), and so is what they are
  /// multiplied with before it is rounded.
  bool rotated = false;

  /// The type of the elements.
  [[nodiscard]] DType stored_as() const { return stored_type(format); }
  /// Bytes from a row to the next, without its scales.
  [[nodiscard]] int64_t row_bytes() const { return faststream::row_bytes(format, cols); }
  [[nodiscard]] const std::byte* row(int64_t r) const {
    return static_cast<const std::byte*>(data) + r * row_bytes();
  }
  /// Null where the format has no scales.
  [[nodiscard]] const std::byte* scales_of(int64_t r) const {
    if (scales == nullptr) return nullptr;
    return static_cast<const std::byte*>(scales) + r * scale_shape(format).row_bytes();
  }
  /// [rows] the factor of each row's elements, where the format has just that (integers); else
  /// null.
  [[nodiscard]] const float* row_scales() const {
    return is_integer(format) ? static_cast<const float*>(scales) : nullptr;
  }
  /// Rows [first, first + count), with what belongs to them.
  [[nodiscard]] Weight row_range(int64_t first, int64_t count) const {
    Weight some = *this;
    some.data = row(first);
    some.rows = count;
    some.scales = scales_of(first);
    return some;
  }
  /// Writes columns [first, first + out.size()) of a row, of what may be rotated, as floats; first
  /// is a multiple of group_columns().
  void decode(int64_t r, int64_t first, std::span<float> out) const {
    decode_row(format, row(r), scales_of(r), first, out);
  }
  /// The same of integers, without the row's scale.
  void decode(int64_t r, int64_t first, std::span<int8_t> out) const {
    decode_integers(format, row(r), first, out);
  }

  /// Products quantize their inputs, as Backend::linear() says.
  [[nodiscard]] bool quantizes_inputs() const { return is_integer(format) && input_bits == 8; }
};

}  // namespace faststream
