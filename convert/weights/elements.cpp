// The loops here have neither branches nor calls, so that the compiler vectorises them; conversion
// has to keep up with the disk.
#include "convert/weights/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

#include "convert/weights/quantize.h"

namespace faststream::convert {
namespace {

template <typename Element>
void decode(const std::byte* in, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Element value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    out[i] = static_cast<float>(value);
  }
}

constexpr int64_t kMxfp4Elements = 32;
constexpr int64_t kMxfp4Bytes = 1 + kMxfp4Elements / 2;

void decode_mxfp4_pairs(const std::byte* in, std::span<float> out) {
  constexpr std::array<float, 16> kE2m1 = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                           -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  constexpr int kExponentBias = 127;
  for (size_t begin = 0; begin < out.size(); begin += kMxfp4Elements, in += kMxfp4Bytes) {
    const float scale = std::ldexp(1.0F, std::to_integer<int>(in[0]) - kExponentBias);
    for (size_t i = 0; i < kMxfp4Elements / 2; ++i) {
      const auto pair = std::to_integer<size_t>(in[1 + i]);
      out[begin + 2 * i] = scale * kE2m1[pair & 15];
      out[begin + 2 * i + 1] = scale * kE2m1[pair >> 4];
    }
  }
}

// 4 bits of exponent, 3 of mantissa; all of them set is NaN.
constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3;
    float value = static_cast<float>(exponent == 0 ? code & 7 : 8 + (code & 7)) / 512;
    for (int i = 1; i < exponent; ++i) value *= 2;
    if (code == 127) value = std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(code)] = value;
    values[static_cast<size_t>(code) + 128] = -value;
  }
  return values;
}();

void decode_e4m3(const std::byte* in, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = kE4m3[std::to_integer<size_t>(in[i])];
}

template <typename Element>
void narrow_as(std::span<const float> in, std::byte* out) {
  for (size_t i = 0; i < in.size(); ++i) {
    const Element value(in[i]);
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

constinit const ElementFormat kF32Format{"F32", 1, 4, DType::f32, decode<float>};
constinit const ElementFormat kF16Format{"F16", 1, 2, DType::f16, decode<Float16>};
constinit const ElementFormat kF64Format{"F64", 1, 8, DType::f32, decode<double>};
constinit const ElementFormat kBf16Format{"BF16", 1, 2, DType::bf16, decode<BFloat16>};
constinit const ElementFormat kMxfp4PairsFormat{"MXFP4", kMxfp4Elements, kMxfp4Bytes, DType::bf16,
                                                decode_mxfp4_pairs};
constinit const ElementFormat kFp8BlocksFormat{"F8_E4M3", 1, 1, DType::bf16, decode_e4m3};

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

double sum_of_squares(std::span<const float> values) {
  // In lanes, because the compiler may not reorder additions to vectorize them.
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> lanes{};
  size_t at = 0;
  for (; at + kLanes <= values.size(); at += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] += values[at + i] * values[at + i];
  }
  for (size_t i = 0; at + i < values.size(); ++i) lanes[i] += values[at + i] * values[at + i];
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

float overflow_magnitude(WeightFormat format) {
  // Halfway from the largest finite value to what would come after it rounds up.
  constexpr float kInF16 = 65520.0F;
  switch (format) {
    case WeightFormat::f16:
      return kInF16;
    case WeightFormat::bf16:
      return std::bit_cast<float>(0x7f7f8000U);
    case WeightFormat::f32:
    case WeightFormat::int8:
    case WeightFormat::int4:
      break;
  }
  return std::numeric_limits<float>::infinity();
}

}  // namespace faststream::convert
