#include "support/kv_format.h"

#include <algorithm>

#include "support/small_floats.h"

namespace faststream {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;

uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffU; }

}  // namespace

KvScale encode_kv(KvFormat format, std::span<const float> elements, uint8_t* codes) {
  uint32_t largest = 0;  // of bits: those of NaN are above all others
  for (const float x : elements) largest = std::max(largest, magnitude_bits(x));
  KvScale scale;
  if (largest >= kInfinity) {
    std::fill_n(codes, elements.size(), uint8_t{0});
    scale.bits = 0x7fc0;
    return scale;
  }
  const float exact = std::bit_cast<float>(largest) / largest_code(format);
  scale.bits = static_cast<uint16_t>((std::bit_cast<uint32_t>(exact) + 0xffffU) >> 16);
  // Of a scale too small to have an inverse everything is zero.
  const float inverse = static_cast<float>(scale) < 0x1p-126F ? 0 : 1 / static_cast<float>(scale);
  if (format == KvFormat::int8) {
    // Adding 1.5 · 2^23 leaves the nearest whole number in the low bits.
    for (size_t i = 0; i < elements.size(); ++i) {
      codes[i] =
          static_cast<uint8_t>(std::bit_cast<uint32_t>(elements[i] * inverse + 0x1.8p23F) & 0xffU);
    }
  } else {
    for (size_t i = 0; i < elements.size(); ++i) codes[i] = to_e4m3(elements[i] * inverse);
  }
  return scale;
}

}  // namespace faststream
