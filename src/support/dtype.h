// Element types and their conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace faststream {

/// Element types of tensors. The numbers are those of the model file; never renumber.
enum class DType : uint32_t {
  f32 = 0,   ///< IEEE 754 binary32
  f16 = 1,   ///< IEEE 754 binary16
  bf16 = 2,  ///< the upper half of binary32
  i8 = 3,    ///< signed byte; as a weight: symmetric, with one float32 scale a row
  u8 = 4,    ///< bytes without numeric meaning (the tokenizer)
};

/// Bytes of one element.
constexpr size_t dtype_size(DType type) {
  switch (type) {
    case DType::f32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

/// The name users see and type: "f32", "f16", "bf16", "int8", "u8".
constexpr std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// The inverse of dtype_name; nothing for an unknown name.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType type : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::u8}) {
    if (dtype_name(type) == name) return type;
  }
  return std::nullopt;
}

/// A bfloat16 as stored. Conversion from float rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffffU) > 0x7f800000U
               ? static_cast<uint16_t>((u >> 16) | 0x40U)
               : static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

/// An IEEE half as stored. Conversion from float rounds to nearest even; too large becomes
/// infinity.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000U);
    const uint32_t magnitude = u & 0x7fffffffU;
    if (magnitude >= 0x47800000U) {  // 65536 and beyond, infinity, NaN
      bits = static_cast<uint16_t>(sign | (magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U));
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to the subnormal's grid
      const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
      bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000U));
    } else {
      const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
      bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000U) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fU;
    const uint32_t mantissa = bits & 0x3ffU;
    if (exponent == 0) {
      const float value = std::ldexp(static_cast<float>(mantissa), -24);
      return sign != 0 ? -value : value;
    }
    const uint32_t wide = exponent == 31 ? 0x7f800000U : (exponent + 112) << 23;
    return std::bit_cast<float>(sign | wide | (mantissa << 13));
  }
};

/// Element `index` of an array of floating-point elements (f32, f16, bf16) or of signed bytes.
inline float load_as_float(const void* data, DType type, size_t index) {
  const auto* bytes = static_cast<const std::byte*>(data) + index * dtype_size(type);
  switch (type) {
    case DType::f32: {
      float value;
      std::memcpy(&value, bytes, sizeof value);
      return value;
    }
    case DType::f16: {
      Float16 value;
      std::memcpy(&value, bytes, sizeof value);
      return static_cast<float>(value);
    }
    case DType::bf16: {
      BFloat16 value;
      std::memcpy(&value, bytes, sizeof value);
      return static_cast<float>(value);
    }
    case DType::i8:
      return static_cast<float>(static_cast<int8_t>(*bytes));
    case DType::u8:
      return static_cast<float>(static_cast<uint8_t>(*bytes));
  }
  return 0;
}

/// Stores `value` as element `index`, rounded to nearest even. Floating-point types only.
inline void store_float(void* data, DType type, size_t index, float value) {
  auto* bytes = static_cast<std::byte*>(data) + index * dtype_size(type);
  if (type == DType::f32) {
    std::memcpy(bytes, &value, sizeof value);
  } else if (type == DType::f16) {
    const Float16 half(value);
    std::memcpy(bytes, &half, sizeof half);
  } else if (type == DType::bf16) {
    const BFloat16 half(value);
    std::memcpy(bytes, &half, sizeof half);
  }
}

}  // namespace faststream
