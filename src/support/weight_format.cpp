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

void decode_int4(const std::byte* row, int64_t first, std::span<int8_t> out) {
  constexpr int64_t kGroups = kInt4Block / kInt4Group;
  for (int64_t group = first / kInt4Group; !out.empty(); ++group) {
    const std::byte* codes = row + row_bytes(WeightFormat::int4, group / kGroups * kInt4Block);
    const Int4Levels levels(codes[group % kGroups]);
    const std::byte* bytes = codes + kInt4CodeBytes + group % kGroups * kInt4GroupBytes;
    std::array<int8_t, kInt4Group> values;
    for (size_t i = 0; i < kInt4GroupBytes; ++i) {
      const auto both = static_cast<int32_t>(bytes[i]);
      values[i] = static_cast<int8_t>(levels[both & 15]);
      values[i + kInt4GroupBytes] = static_cast<int8_t>(levels[both >> 4]);
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
    case WeightFormat::int8:
    case WeightFormat::int4: {
      const auto scale = load<float>(scales, 0);
      std::array<int8_t, kInt4Block> integers;
      for (size_t at = 0; at < out.size(); at += integers.size()) {
        const size_t count = std::min(out.size() - at, integers.size());
        decode_integers(format, row, first + static_cast<int64_t>(at), {integers.data(), count});
        for (size_t i = 0; i < count; ++i) out[at + i] = scale * static_cast<float>(integers[i]);
      }
      return;
    }
  }
}

void decode_integers(WeightFormat format, const std::byte* row, int64_t first,
                     std::span<int8_t> out) {
  if (format == WeightFormat::int4) return decode_int4(row, first, out);
  std::memcpy(out.data(), row + first, out.size());
}

}  // namespace faststream
