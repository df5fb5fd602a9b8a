// Element types and their conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace faststream {

/// Element types of tensors. The numbers are those of the model file; never renumber.
enum class DType : uint32_t {
  f32 = 0,     ///< IEEE 754 binary32
  f16 = 1,     ///< IEEE 754 binary16
  bf16 = 2,    ///< the upper half of binary32
  i8 = 3,      ///< signed byte
  u8 = 4,      ///< bytes without numeric meaning (the tokenizer)
  packed = 5,  ///< bytes with several numbers each (support/weight_format.h)
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
    case DType::packed:
      return 1;
  }
  return 0;
}

/// The name users see: "f32", "f16", "bf16", "int8", "u8", "packed".
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
    case DType::packed:
      return "packed";
  }
  return "?";
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
    // All three cases are computed and one is chosen, so that loops over elements vectorise.
    const uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
    // Below 2^-14: adding 0.5 rounds to the subnormals' grid.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
    const uint32_t normal = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
    const uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
    bits = static_cast<uint16_t>(sign | (magnitude >= 0x47800000U ? special : finite));
  }
  explicit operator float() const {
    // Exponent and mantissa in a float's places mean a value that is 2^112 too small, subnormals
    // included; only infinity and NaN need their exponent forced.
    const uint32_t magnitude = (bits & 0x7fffU) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
    const uint32_t special = magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
    const uint32_t sign = (bits & 0x8000U) << 16;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
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
    case DType::packed:
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
