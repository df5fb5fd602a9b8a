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
#include "support/small_floats.h"

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

void decode_e4m3(const std::byte* in, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = kE4m3Values[std::to_integer<size_t>(in[i])];
}

void decode_e8m0(const std::byte* in, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = e8m0_value(std::to_integer<uint8_t>(in[i]));
}

constexpr auto kUndecodedFormats = std::to_array<ElementFormat>({{"BOOL", 1, 1},
                                                                 {"U8", 1, 1},
                                                                 {"I8", 1, 1},
                                                                 {"F8_E4M3", 1, 1},
                                                                 {"F8_E5M2", 1, 1},
                                                                 {"F8_E8M0", 1, 1},
                                                                 {"I16", 1, 2},
                                                                 {"U16", 1, 2},
                                                                 {"I32", 1, 4},
                                                                 {"U32", 1, 4},
                                                                 {"I64", 1, 8},
                                                                 {"U64", 1, 8}});

// Of packed numbers, byte by byte.
constexpr int64_t kPackedTogether = 8;
constexpr auto kPackedIntegers = std::to_array<ElementFormat>({
    {"INT1", kPackedTogether, 1, DType::bf16},
    {"INT2", kPackedTogether, 2, DType::bf16},
    {"INT3", kPackedTogether, 3, DType::bf16},
    {"INT4", kPackedTogether, 4, DType::bf16},
    {"INT5", kPackedTogether, 5, DType::bf16},
    {"INT6", kPackedTogether, 6, DType::bf16},
    {"INT7", kPackedTogether, 7, DType::bf16},
    {"INT8", kPackedTogether, 8, DType::bf16},
});

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
constinit const ElementFormat kE4m3Format{"F8_E4M3", 1, 1, DType::bf16, decode_e4m3};
constinit const ElementFormat kE8m0Format{"F8_E8M0", 1, 1, DType::bf16, decode_e8m0};
constinit const ElementFormat kInt8Format{"INT8", 1, 1, DType::bf16, decode<int8_t>};
constinit const ElementFormat kNf4Format{"NF4", kPackedTogether, 4, DType::bf16};
constinit const ElementFormat kFp4Format{"FP4", kPackedTogether, 4, DType::bf16};

const ElementFormat& packed_integers(int bits) {
  return kPackedIntegers.at(static_cast<size_t>(bits - 1));
}

const ElementFormat* find_element_format(std::string_view name) {
  for (const ElementFormat* format : {&kF32Format, &kF16Format, &kBf16Format, &kF64Format}) {
    if (name == format->name) return format;
  }
  const auto found = std::ranges::find(kUndecodedFormats, name, &ElementFormat::name);
  return found == kUndecodedFormats.end() ? nullptr : &*found;
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
    default:
      break;
  }
  return std::numeric_limits<float>::infinity();
}

}  // namespace faststream::convert
