// How keys and values are kept: the one place that knows what a format's codes mean and what memory
// they take.
//
// A head's elements of one token are rounded to codes of one byte with one scale: element = scale ·
// code. Keys are rotated before (support/hadamard.h), as some of their columns are much larger than
// others, and queries alike; values are not.
//
// In a page each head has the codes of all its tokens, a token a row, and then their scales. So a
// page is as many bytes of each head as of others, and what copies pages need not know a format.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "support/dtype.h"

namespace faststream {

enum class KvFormat : uint8_t {
  plain,  ///< floats as they are
  int8,   ///< whole numbers from -127 to 127
  fp8,    ///< floats of 4 bits of exponent and 3 of mantissa, up to 448 (E4M3, arXiv:2209.05433)
};

/// The name users see and type: "int8", "fp8"; of plain floats "".
constexpr std::string_view kv_format_name(KvFormat format) {
  switch (format) {
    case KvFormat::plain:
      return "";
    case KvFormat::int8:
      return "int8";
    case KvFormat::fp8:
      return "fp8";
  }
  return "?";
}

/// The inverse; nothing for an unknown name.
constexpr std::optional<KvFormat> kv_format_from_name(std::string_view name) {
  for (const KvFormat format : {KvFormat::plain, KvFormat::int8, KvFormat::fp8}) {
    if (kv_format_name(format) == name) return format;
  }
  return std::nullopt;
}

/// How a layer keeps keys and values.
struct KvType {
  DType dtype = DType::f32;  ///< of floats as they are; of what tensor cores make of codes
  KvFormat format = KvFormat::plain;

  constexpr KvType() = default;
  // Most often a type is all there is to say.
  constexpr KvType(DType type, KvFormat how = KvFormat::plain)  // NOLINT(*-explicit-*)
      : dtype(type), format(how) {}
  bool operator==(const KvType&) const = default;
};

/// A scale has the upper half of a float32. Codes are made with what was so rounded, upwards.
using KvScale = BFloat16;

/// Bytes of a head's elements of one token.
constexpr int64_t kv_row_bytes(KvType type, int64_t elements) {
  if (type.format == KvFormat::plain)
    return elements * static_cast<int64_t>(dtype_size(type.dtype));
  return elements + static_cast<int64_t>(sizeof(KvScale));
}

/// The largest number that a code stands for.
constexpr float largest_code(KvFormat format) { return format == KvFormat::int8 ? 127 : 448; }

/// What a code stands for.
inline float decode_kv(KvFormat format, uint8_t code) {
  if (format == KvFormat::int8) return static_cast<float>(static_cast<int8_t>(code));
  // Exponent and mantissa in a float's places mean a number that is 2^120 too small.
  const float magnitude = std::bit_cast<float>((code & 0x7fU) << 20) * 0x1p120F;
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

/// Rounds a head's elements to codes, to nearest even; returns their scale. Where an element is not
/// finite the scale is NaN.
KvScale encode_kv(KvFormat format, std::span<const float> elements, uint8_t* codes);

}  // namespace faststream
