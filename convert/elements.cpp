// The loops here have neither branches nor calls, so that the compiler vectorises them; conversion
// has to keep up with the disk.
#include "convert/elements.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace faststream {
namespace {

// Shifting a half's exponent and mantissa into place leaves a float that is too small by 2^112,
// subnormals included; only infinity and NaN need their exponent forced.
float widen_half(uint16_t half) {
  const uint32_t magnitude = (half & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const uint32_t special = magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
  const uint32_t sign = (half & 0x8000U) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

template <typename Element>
Element load(const std::byte* in, size_t index) {
  Element value;
  std::memcpy(&value, in + index * sizeof value, sizeof value);
  return value;
}

template <typename Element>
void narrow_as(std::span<const float> in, std::byte* out) {
  for (size_t i = 0; i < in.size(); ++i) {
    const Element value(in[i]);
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

void widen(const std::byte* in, DType type, std::span<float> out) {
  float* to = out.data();
  const size_t count = out.size();
  if (type == DType::f32) {
    std::memcpy(to, in, count * sizeof(float));
  } else if (type == DType::f16) {
    for (size_t i = 0; i < count; ++i) to[i] = widen_half(load<uint16_t>(in, i));
  } else if (type == DType::bf16) {
    for (size_t i = 0; i < count; ++i) {
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(in, i)) << 16);
    }
  }
}

void narrow(std::span<const float> in, DType type, std::byte* out) {
  if (type == DType::f32) {
    std::memcpy(out, in.data(), in.size_bytes());
  } else if (type == DType::f16) {
    narrow_as<Float16>(in, out);
  } else if (type == DType::bf16) {
    narrow_as<BFloat16>(in, out);
  }
}

float largest_magnitude(std::span<const float> values) {
  // Magnitudes order as their bits do, with infinity and NaN on top.
  int32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, static_cast<int32_t>(std::bit_cast<uint32_t>(value) & 0x7fffffffU));
  }
  return std::bit_cast<float>(largest);
}

float overflow_magnitude(DType type) {
  // Halfway from the largest finite value to what would come after it rounds up.
  if (type == DType::f16) return 65520.0F;
  if (type == DType::bf16) return std::bit_cast<float>(0x7f7f8000U);
  return std::numeric_limits<float>::infinity();
}

}  // namespace faststream
