// Weights for tests of products.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "unit/backend/backend_fixture.h"

namespace faststream {

struct HostWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t cols = 0;
  HostTensor values = {};  // as they are stored
  HostTensor scales = {};  // scale_shape() for each row
  int32_t input_bits = 8;  // see Weight
  bool rotated = false;    // likewise

  /// What the elements of a row mean.
  [[nodiscard]] std::vector<float> row(int64_t r) const {
    std::vector<float> decoded(static_cast<size_t>(cols));
    decode_row(format, values.bytes.data() + r * row_bytes(format, cols),
               scales.bytes.data() + r * scale_shape(format).row_bytes(), 0, decoded);
    return decoded;
  }

  void take_inputs_of_16_bits() {
    input_bits = 16;
    rotated = false;
  }
};

/// Makes random bytes of a coded matrix numbers of about the deviation, groups with other scales.
inline void describe_groups(Random& random, HostWeight& weight, float deviation) {
  const WeightFormat format = weight.format;
  const PackedLayout layout = packed_layout(format);
  const int64_t bytes = row_bytes(format, weight.cols);
  // What codes chosen at random deviate by.
  const float of_codes = format == WeightFormat::fp8 ? 110 : format == WeightFormat::nf4 ? 0.5F : 4;
  for (int64_t r = 0; r < weight.values.rows; ++r) {
    std::byte* row = weight.values.bytes.data() + r * bytes;
    for (int64_t at = 0; at < bytes; ++at) {
      constexpr std::byte kNan{0x7f};
      if (format == WeightFormat::fp8 && (row[at] & kNan) == kNan) row[at] = std::byte{};
    }
    for (int64_t at = 0; at < bytes; at += packed_block_bytes(format)) {
      for (int64_t i = 0; i < described_bytes(format); i += layout.group_bytes) {
        const int exponent = static_cast<int>(random() % 3) - 1;
        const float scale = std::ldexp(deviation / of_codes, exponent);
        auto word = std::bit_cast<uint32_t>(scale);
        if (format == WeightFormat::mxfp4) {
          row[at + i] = static_cast<std::byte>(word >> 23);
          continue;
        }
        if (layout.element_bits == 4 && format != WeightFormat::nf4) {
          word = word >> 16 << 16 | (5 + random() % 6);
        }
        std::memcpy(row + at + i, &word, sizeof word);
      }
    }
  }
}

/// So that results are about as large as inputs. Half of those of integers are rotated.
inline HostWeight random_weight(Random& random, WeightFormat format, int64_t outputs,
                                int64_t inputs) {
  const float deviation = 1.0F / std::sqrt(static_cast<float>(inputs));
  HostWeight weight{.format = format, .cols = inputs};
  weight.values = random_tensor(random, stored_type(format), outputs,
                                stored_columns(format, inputs), 0, deviation);
  if (is_coded(format)) describe_groups(random, weight, deviation);
  const ScaleShape shape = scale_shape(format);
  const float element = format == WeightFormat::int4 ? 45 : 73;  // the deviation of its integers
  weight.scales = HostTensor(stored_type(shape.format), outputs, shape.columns);
  std::uniform_real_distribution<float> factor(0.5F, 1.5F);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < shape.columns; ++c) {
      weight.scales.set(o, c, factor(random) * deviation / element);
    }
  }
  weight.rotated = is_integer(format) && random() % 2 == 0;
  return weight;
}

/// A weight in a backend's memory.
class DeviceWeight {
 public:
  DeviceWeight(Backend& backend, const HostWeight& host)
      : values_(backend, host.values),
        scales_(backend, host.scales),
        weight_{.data = values_.data(),
                .format = host.format,
                .rows = host.values.rows,
                .cols = host.cols,
                .scales = host.scales.cols > 0 ? scales_.data() : nullptr,
                .input_bits = host.input_bits,
                .rotated = host.rotated} {
    backend.arrange(weight_);
  }

  [[nodiscard]] const Weight& weight() const { return weight_; }

 private:
  DeviceTensor values_;
  DeviceTensor scales_;
  Weight weight_;
};

/// The weights beside which a row's result has the same bits whatever the number of rows. For
/// 16-bit ones this holds on tensor cores and tiles, which round activations; float sums are so
/// exact that their order does not matter to a text. For integers it holds where they are added.
inline std::vector<WeightFormat> formats_summed_in_order(const Backend& backend) {
  const std::string device = backend.description();
  const auto has = [&](const char* name) { return device.find(name) != std::string::npos; };
  using enum WeightFormat;
  if (has("CUDA")) {
    return {int8, int4, bf16, f16, fp8, mxfp4, nf4, int4_g32, int4_g64, int4_g128};
  }
  if (has("AMX") || has("BF16")) return {int8, int4, bf16};
  if (has("VNNI") || has("AVX2")) return {int8, int4};
  return {};
}

}  // namespace faststream
