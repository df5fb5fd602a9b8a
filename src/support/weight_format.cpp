#include "support/weight_format.h"

#include <algorithm>

namespace faststream {
namespace {

template <typename T>
T load(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

template <typename T>
void decode_floats(const std::byte* row, int64_t first, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(load<T>(row, first + static_cast<int64_t>(i)));
  }
}

// The low halves of a group's bytes are its first columns.
void decode_int4(const std::byte* row, const std::byte* scales, int64_t first,
                 std::span<float> out) {
  constexpr int64_t kBytes = kInt4Group / 2;
  for (int64_t group = first / kInt4Group; !out.empty(); ++group) {
    const auto scale = static_cast<float>(load<Float16>(scales, group));
    const std::byte* bytes = row + group * kBytes;
    std::array<float, kInt4Group> values;
    for (size_t i = 0; i < kBytes; ++i) {
      const auto both = static_cast<int32_t>(bytes[i]);
      values[i] = scale * static_cast<float>((both & 15) - 8);
      values[i + kBytes] = scale * static_cast<float>((both >> 4) - 8);
    }
    const size_t count = std::min(out.size(), values.size());
    std::copy_n(values.begin(), count, out.begin());
    out = out.subspan(count);
  }
}

}  // namespace

void decode_row(WeightFormat format, const std::byte* row, const std::byte* scales, int64_t first,
                std::span<float> out) {
  switch (format) {
    case WeightFormat::f32:
      return decode_floats<float>(row, first, out);
    case WeightFormat::f16:
      return decode_floats<Float16>(row, first, out);
    case WeightFormat::bf16:
      return decode_floats<BFloat16>(row, first, out);
    case WeightFormat::int8: {
      decode_floats<int8_t>(row, first, out);
      const auto scale = load<float>(scales, 0);
      for (float& value : out) value *= scale;
      return;
    }
    case WeightFormat::int4:
      return decode_int4(row, scales, first, out);
  }
}

}  // namespace faststream
