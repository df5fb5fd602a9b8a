// How the numbers of a weight matrix are stored: the one place that knows a format's bytes, what
// belongs to it, and how it is decoded.
//
// A format is not an element type (support/dtype.h): some have scales beside their elements, some
// several numbers in a byte. A backend has products of its own for the formats that it is fast
// with, and decodes the rows of all others before it multiplies.
#pragma once

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
  int4,  ///< q from -8 to 7 in groups of 32 columns, each with a float16 scale: scale · q
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

inline constexpr int64_t kInt4Group = 32;  ///< columns with one scale

/// Columns that are stored together: a part of a row begins at a multiple of them.
constexpr int64_t group_columns(WeightFormat format) {
  return format == WeightFormat::int4 ? kInt4Group : 1;
}

/// Elements of the stored type for so many columns; the last group of a row is stored whole.
constexpr int64_t stored_columns(WeightFormat format, int64_t cols) {
  if (format != WeightFormat::int4) return cols;
  return (cols + kInt4Group - 1) / kInt4Group * (kInt4Group / 2);
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
constexpr ScaleShape scale_shape(WeightFormat format, int64_t cols) {
  if (format == WeightFormat::int8) return {WeightFormat::f32, 1};
  if (format == WeightFormat::int4)
    return {WeightFormat::f16, (cols + kInt4Group - 1) / kInt4Group};
  return {};
}

/// Writes what columns [first, first + out.size()) of a row mean. `row` and `scales` are the row's
/// own; `first` is a multiple of group_columns().
void decode_row(WeightFormat format, const std::byte* row, const std::byte* scales, int64_t first,
                std::span<float> out);

}  // namespace faststream
