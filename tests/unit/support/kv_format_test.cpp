#include "support/kv_format.h"
#include "unit/normal.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace faststream {
namespace {

constexpr std::array kCodedKvFormats = {KvFormat::int8, KvFormat::fp8};

std::vector<float> decoded(KvFormat format, const std::vector<float>& elements) {
  std::vector<uint8_t> codes(elements.size());
  const auto scale = static_cast<float>(encode_kv(format, elements, codes.data()));
  std::vector<float> result;
  for (const uint8_t code : codes) result.push_back(scale * decode_kv(format, code));
  return result;
}

TEST(KvFormat, NamesAreThoseThatUsersType) {
  EXPECT_EQ(kv_format_from_name(""), KvFormat::plain);
  EXPECT_EQ(kv_format_from_name("int8"), KvFormat::int8);
  EXPECT_EQ(kv_format_from_name("fp8"), KvFormat::fp8);
  EXPECT_EQ(kv_format_from_name("int4"), std::nullopt);
}

TEST(KvFormat, EveryCodeKeepsItsNumber) {
  for (const KvFormat format : kCodedKvFormats) {
    std::vector<float> all;
    for (int code = 0; code < 256; ++code) {
      const bool is_nan = format == KvFormat::fp8 && (code & 0x7f) == 0x7f;
      const bool is_unused = format == KvFormat::int8 && code == 0x80;
      if (!is_nan && !is_unused) all.push_back(decode_kv(format, static_cast<uint8_t>(code)));
    }
    EXPECT_EQ(*std::max_element(all.begin(), all.end()), largest_code(format));
    EXPECT_EQ(decoded(format, all), all) << kv_format_name(format);
  }
  EXPECT_EQ(decode_kv(KvFormat::fp8, 0x01), 0x1p-9F);
  EXPECT_EQ(decode_kv(KvFormat::fp8, 0x08), 0x1p-6F);
  EXPECT_EQ(decode_kv(KvFormat::fp8, 0xb8), -1);
}

TEST(KvFormat, RoundsToTheNearest) {
  std::mt19937 random(3);
  Normal normal;
  for (const float size : {1e-20F, 1e-3F, 1.0F, 5e4F, 1e30F}) {
    std::vector<float> elements;
    for (int i = 0; i < 500; ++i) elements.push_back(size * normal(random));
    float largest = 0;
    for (const float x : elements) largest = std::max(largest, std::abs(x));
    const std::vector<float> ints = decoded(KvFormat::int8, elements);
    const std::vector<float> floats = decoded(KvFormat::fp8, elements);
    for (size_t i = 0; i < elements.size(); ++i) {
      // A scale is rounded upwards by one part in 128 at most.
      EXPECT_LE(std::abs(ints[i] - elements[i]), 0.505F / 127 * 1.008F * largest);
      EXPECT_LE(std::abs(floats[i] - elements[i]),
                std::max(0x1.02p-4F * std::abs(elements[i]), 0x1.04p-10F / 448 * largest));
    }
  }
}

TEST(KvFormat, KeepsZerosAndTellsOfWhatIsNotFinite) {
  for (const KvFormat format : kCodedKvFormats) {
    EXPECT_EQ(decoded(format, {0, -0.0F, 0}), std::vector<float>(3, 0));
    EXPECT_EQ(decoded(format, {1e-45F, 0}), std::vector<float>(2, 0));
    for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
      for (const float x : decoded(format, {1, bad, 3})) EXPECT_TRUE(std::isnan(x));
    }
  }
}

}  // namespace
}  // namespace faststream
