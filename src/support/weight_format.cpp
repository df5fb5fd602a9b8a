#include "support/weight_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "support/small_floats.h"

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

// The codes of kPackedStep columns.
void unpack_step(int64_t element_bits, const std::byte* from,
                 std::array<uint8_t, kPackedStep>& codes) {
  constexpr int64_t kHalf = kPackedStep / 2;
  for (int64_t c = 0; c < kPackedStep; ++c) {
    const std::byte code =
        element_bits == 8 ? from[coded_place(c)] : from[coded_place(c % kHalf)] >> c / kHalf * 4;
    codes[static_cast<size_t>(c)] = std::to_integer<uint8_t>(code) & (element_bits == 8 ? 255 : 15);
  }
}

void decode_coded(WeightFormat format, const std::byte* row, int64_t first, std::span<float> out) {
  const PackedLayout layout = packed_layout(format);
  const std::span<const float> values = code_values(format);
  const int64_t step_bytes = kPackedStep * layout.element_bits / 8;
  for (int64_t column = first; !out.empty(); column += kPackedStep) {
    const std::byte* block = row + column / kPackedBlock * packed_block_bytes(format);
    const int64_t in_block = column % kPackedBlock;
    const CodedGroup group(format, block + in_block / layout.group * layout.group_bytes);
    std::array<uint8_t, kPackedStep> codes;
    unpack_step(layout.element_bits,
                block + described_bytes(format) + in_block / kPackedStep * step_bytes, codes);
    const size_t count = std::min(out.size(), codes.size());
    for (size_t i = 0; i < count; ++i) out[i] = (values[codes[i]] - group.zero) * group.scale;
    out = out.subspan(count);
  }
}

}  // namespace

CodedGroup::CodedGroup(WeightFormat format, const std::byte* description) {
  if (format == WeightFormat::mxfp4) {
    scale = e8m0_value(std::to_integer<uint8_t>(*description));
    return;
  }
  constexpr uint32_t kZero = 15;
  const auto word = load<uint32_t>(description, 0);
  const bool has_zero = packed_layout(format).element_bits == 4 && format != WeightFormat::nf4;
  scale = std::bit_cast<float>(has_zero ? word & ~kZero : word);
  zero = has_zero ? static_cast<float>(word & kZero) : 0.0F;
}

std::span<const float> code_values(WeightFormat format) {
  switch (format) {
    case WeightFormat::fp8:
      return kE4m3Values;
    case WeightFormat::mxfp4:
      return kE2m1Values;
    case WeightFormat::nf4:
      return kNf4Values;
    default:
      return kFourBitIntegers;
  }
}

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
    default:
      return decode_coded(format, row, first, out);
  }
}

void decode_integers(WeightFormat format, const std::byte* row, int64_t first,
                     std::span<int8_t> out) {
  if (format == WeightFormat::int4) return decode_int4(row, first, out);
  std::memcpy(out.data(), row + first, out.size());
}

}  // namespace faststream
