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
  // Codes of floats, groups of columns with a scale: see CodedGroups.
  fp8,        ///< E4M3 (arXiv:2209.05433), a float32 for 128 columns
  mxfp4,      ///< E2M1, a power of two for 32 (OCP Microscaling Formats 1.0)
  nf4,        ///< quantiles of a normal distribution (arXiv:2305.14314), a float32 for 64
  int4_g32,   ///< integers of four bits, a float and a zero point for 32,
  int4_g64,   ///< for 64,
  int4_g128,  ///< for 128
};
inline constexpr std::array kWeightFormats = {
    WeightFormat::f32,      WeightFormat::f16,      WeightFormat::bf16,     WeightFormat::int8,
    WeightFormat::int4,     WeightFormat::fp8,      WeightFormat::mxfp4,    WeightFormat::nf4,
    WeightFormat::int4_g32, WeightFormat::int4_g64, WeightFormat::int4_g128};

/// The name users see and type: "f32", "int4", "int4-g128".
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
    case WeightFormat::fp8:
      return "fp8";
    case WeightFormat::mxfp4:
      return "mxfp4";
    case WeightFormat::nf4:
      return "nf4";
    case WeightFormat::int4_g32:
      return "int4-g32";
    case WeightFormat::int4_g64:
      return "int4-g64";
    case WeightFormat::int4_g128:
      return "int4-g128";
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
    case WeightFormat::fp8:
    case WeightFormat::mxfp4:
    case WeightFormat::nf4:
    case WeightFormat::int4_g32:
    case WeightFormat::int4_g64:
    case WeightFormat::int4_g128:
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

inline constexpr int64_t kPackedBlock = 512;  ///< columns
inline constexpr int64_t kPackedStep = 32;    ///< a row's last block is a multiple of it

/// How a format of type DType::packed stores a row: block after block of kPackedBlock columns, of
/// first what describes its groups, then their elements. Elements of four bits come 32 columns
/// in 16 bytes: the first half in low halves of bytes, the second in high ones. Codes of floats:
/// see coded_place().
struct PackedLayout {
  int64_t group = kPackedBlock;  ///< columns that have a description together
  int64_t group_bytes = 0;       ///< of the description
  int64_t element_bits = 8;
};
constexpr PackedLayout packed_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::int4:
    case WeightFormat::mxfp4:
      return {32, 1, 4};
    case WeightFormat::nf4:
    case WeightFormat::int4_g64:
      return {64, 4, 4};
    case WeightFormat::int4_g32:
      return {32, 4, 4};
    case WeightFormat::int4_g128:
      return {128, 4, 4};
    case WeightFormat::fp8:
      return {128, 4, 8};
    default:
      return {};
  }
}

/// Groups of a block.
constexpr int64_t packed_groups(WeightFormat format) {
  return kPackedBlock / packed_layout(format).group;
}
/// Bytes of a block's descriptions of groups: all of them, even where the row has fewer.
constexpr int64_t described_bytes(WeightFormat format) {
  const PackedLayout layout = packed_layout(format);
  return packed_groups(format) * layout.group_bytes;
}
/// Bytes of a whole block: a multiple of 16, as all rows are.
constexpr int64_t packed_block_bytes(WeightFormat format) {
  return described_bytes(format) + kPackedBlock * packed_layout(format).element_bits / 8;
}

inline constexpr int64_t kInt4Group = packed_layout(WeightFormat::int4).group;
inline constexpr int64_t kInt4GroupBytes = kInt4Group / 2;  ///< its elements
inline constexpr int64_t kInt4Block = kPackedBlock;
inline constexpr int64_t kInt4CodeBytes = described_bytes(WeightFormat::int4);
inline constexpr int64_t kInt4BlockBytes = packed_block_bytes(WeightFormat::int4);

/// Whether elements are codes of floats, in groups with a scale each. Products take inputs beside
/// them as they are, and the floats rounded to the inputs' type; beside fp8 a backend may round
/// inputs to E4M3, each row with a scale of its own.
constexpr bool is_coded(WeightFormat format) {
  return stored_type(format) == DType::packed && format != WeightFormat::int4;
}

/// Where codes of floats are among their step's, those of four bits among its first half's or its
/// second's: of sixteen columns the first eight and the others by turns. So what a thread brings to
/// the tensor cores' registers (columns 2t, 2t + 1, 2t + 8 and 2t + 9) is a word.
constexpr int64_t coded_place(int64_t column) {
  return column / 16 * 16 + column % 8 * 2 + column / 8 % 2;
}

/// What the codes of a group mean: (value of the code - zero) · scale, in float32.
struct CodedGroup {
  float scale = 0;
  float zero = 0;  ///< of int4_g32 and its like, 0 to 15

  /// From the bytes that describe the group: of mxfp4 E8M0, of fp8 and nf4 a float32, of the
  /// others a float32 whose lowest four bits are the zero point, not the scale's: enough for scales
  /// that are floats of 16 bits.
  CodedGroup(WeightFormat format, const std::byte* description);
};

/// The values of all codes of a format that is_coded(): 16 or 256. E4M3 has no infinities; two are
/// NaN.
std::span<const float> code_values(WeightFormat format);

/// Columns that are stored together: a part of a row begins at a multiple of them.
constexpr int64_t group_columns(WeightFormat format) {
  return stored_type(format) == DType::packed ? kPackedBlock : 1;
}

/// Elements of the stored type for so many columns.
constexpr int64_t stored_columns(WeightFormat format, int64_t cols) {
  if (stored_type(format) != DType::packed) return cols;
  const int64_t blocks = (cols + kPackedBlock - 1) / kPackedBlock;
  const int64_t steps = (cols + kPackedStep - 1) / kPackedStep;
  return blocks * described_bytes(format) +
         steps * kPackedStep * packed_layout(format).element_bits / 8;
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
constexpr ScaleShape scale_shape(WeightFormat format) {
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
