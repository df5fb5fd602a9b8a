// How the numbers of a weight matrix are stored: the one place that knows a format's bytes, what
// belongs to it, and how it is decoded.
//
// A format is not an element type (support/dtype.h): some have scales beside their elements, some
// several numbers in a byte. A backend has products of its own for the formats that it is fast
// with, and decodes the rows of all others before it multiplies.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "support/dtype.h"

namespace faststream {

enum class WeightFormat : uint8_t {
  f32,  ///< elements as they are, as the next two
  f16,
  bf16,
  int8,  ///< signed bytes q, and a float32 scale for each row: scale · q
  int4,  ///< the same with bytes of few levels, kInt4Group columns at a time: see Int4Levels
};
inline constexpr std::array kWeightFormats = {WeightFormat::f32, WeightFormat::f16,
                                              WeightFormat::bf16, WeightFormat::int8,
                                              WeightFormat::int4};

/// The name users see and type: "f32", "f16", "bf16", "int8", "int4".
constexpr std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::int4:
      return "int4";
  }
  return "?";
}

/// The inverse of format_name; nothing for an unknown name.
constexpr std::optional<WeightFormat> format_from_name(std::string_view name) {
  for (const WeightFormat format : kWeightFormats) {
    if (format_name(format) == name) return format;
  }
  return std::nullopt;
}

/// The type of the elements that a matrix of this format has in memory and in a file.
constexpr DType stored_type(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return DType::f32;
    case WeightFormat::f16:
      return DType::f16;
    case WeightFormat::bf16:
      return DType::bf16;
    case WeightFormat::int8:
      return DType::i8;
    case WeightFormat::int4:
      return DType::packed;
  }
  return DType::f32;
}

/// The format whose elements are of a floating type, as they are. Floating types only.
constexpr WeightFormat format_of(DType type) {
  return type == DType::f16    ? WeightFormat::f16
         : type == DType::bf16 ? WeightFormat::bf16
                               : WeightFormat::f32;
}

/// Whether elements are the numbers themselves.
constexpr bool is_float(WeightFormat format) {
  return format == WeightFormat::f32 || format == WeightFormat::f16 || format == WeightFormat::bf16;
}

/// Whether elements are signed bytes, however stored, and a row has one float32 that all are
/// multiplied with.
constexpr bool is_integer(WeightFormat format) {
  return format == WeightFormat::int8 || format == WeightFormat::int4;
}

/// The sixteen signed bytes that a group's elements of int4 choose from: step · q - offset, q from
/// 0 to 15. So an int4 matrix is an int8 one, exactly, whose rows have one scale each; of groups
/// that hold small numbers the step is small. (Two levels of scales, the inner ones integers: as in
/// QServe, arXiv:2405.04532, and in llama.cpp's K-quants.)
struct Int4Levels {
  int32_t step = 0;
  int32_t offset = 0;

  /// From the byte that describes a group. Its low half is the step, 0 to 15; its high half h
  /// means an offset of half the step times 8 + h, rounded down, but that no level leaves ±127.
  constexpr explicit Int4Levels(std::byte code)
      : step(static_cast<int32_t>(code) & 15),
        offset(
            std::clamp(step * (8 + (static_cast<int32_t>(code) >> 4)) / 2, 15 * step - 127, 127)) {}

  [[nodiscard]] constexpr int32_t operator[](int32_t q) const { return step * q - offset; }
};

inline constexpr int64_t kInt4Group = 32;       ///< columns with the same levels
inline constexpr int64_t kInt4GroupBytes = 16;  ///< their q, in order: the first half in low halves
inline constexpr int64_t kInt4Block = 512;      ///< columns whose groups are stored together:
inline constexpr int64_t kInt4CodeBytes = 16;   ///< a byte for each group, then their elements

/// Columns that are stored together: a part of a row begins at a multiple of them.
constexpr int64_t group_columns(WeightFormat format) {
  return format == WeightFormat::int4 ? kInt4Block : 1;
}

/// Elements of the stored type for so many columns. A row's last block is as long as its groups;
/// its last group is stored whole.
constexpr int64_t stored_columns(WeightFormat format, int64_t cols) {
  if (format != WeightFormat::int4) return cols;
  const int64_t blocks = (cols + kInt4Block - 1) / kInt4Block;
  const int64_t groups = (cols + kInt4Group - 1) / kInt4Group;
  return blocks * kInt4CodeBytes + groups * kInt4GroupBytes;
}

/// Bytes of so many columns of a row, without its scales.
constexpr int64_t row_bytes(WeightFormat format, int64_t cols) {
  return stored_columns(format, cols) * static_cast<int64_t>(dtype_size(stored_type(format)));
}

/// The scales of a matrix: a matrix of `columns` for each of its rows; 0: there are none.
struct ScaleShape {
  WeightFormat format = WeightFormat::f32;
  int64_t columns = 0;

  [[nodiscard]] int64_t row_bytes() const { return faststream::row_bytes(format, columns); }
};
constexpr ScaleShape scale_shape(WeightFormat format, [[maybe_unused]] int64_t cols) {
  return is_integer(format) ? ScaleShape{WeightFormat::f32, 1} : ScaleShape{};
}

/// Writes what columns [first, first + out.size()) of a row mean. `row` and `scales` are the row's
/// own; `first` is a multiple of group_columns().
void decode_row(WeightFormat format, const std::byte* row, const std::byte* scales, int64_t first,
                std::span<float> out);

/// The same of a format that is_integer(): the bytes, without the row's scale.
void decode_integers(WeightFormat format, const std::byte* row, int64_t first,
                     std::span<int8_t> out);

}  // namespace faststream
