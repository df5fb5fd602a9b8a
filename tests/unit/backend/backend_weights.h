// Weights for tests of products.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "unit/backend/backend_fixture.h"

namespace faststream {

struct HostWeight {
  HostTensor values;
  HostTensor scales;       // i8 only
  int32_t input_bits = 8;  // see Weight
  bool rotated = false;    // likewise

  void take_inputs_of_16_bits() {
    input_bits = 16;
    rotated = false;
  }
};

/// So that results are about as large as inputs. Half of those of i8 are rotated.
inline HostWeight random_weight(Random& random, DType dtype, int64_t outputs, int64_t inputs) {
  const float deviation = 1.0F / std::sqrt(static_cast<float>(inputs));
  HostWeight weight;
  weight.values = random_tensor(random, dtype, outputs, inputs, 0, deviation);
  if (dtype == DType::i8) {
    weight.scales = HostTensor(DType::f32, 1, outputs);
    std::uniform_real_distribution<float> factor(0.5F, 1.5F);
    for (int64_t o = 0; o < outputs; ++o) {
      weight.scales.set(0, o, factor(random) * deviation / 73);
    }
    weight.rotated = random() % 2 == 0;
  }
  return weight;
}

/// A weight in a backend's memory.
class DeviceWeight {
 public:
  DeviceWeight(Backend& backend, const HostWeight& host)
      : values_(backend, host.values),
        scales_(backend, host.scales),
        input_bits_(host.input_bits),
        rotated_(host.rotated) {}

  [[nodiscard]] Weight weight() const {
    Weight weight = values_.weight();
    if (weight.format == DType::i8) weight.scales = static_cast<const float*>(scales_.data());
    weight.input_bits = input_bits_;
    weight.rotated = rotated_;
    return weight;
  }

 private:
  DeviceTensor values_;
  DeviceTensor scales_;
  int32_t input_bits_;
  bool rotated_;
};

/// The weights beside which a row's result has the same bits whatever the number of rows. For
/// 16-bit ones this holds on tensor cores and tiles, which round activations; float sums are so
/// exact that their order does not matter to a text. For i8 it holds where integers are added.
inline std::vector<DType> types_summed_in_order(const Backend& backend) {
  const std::string device = backend.description();
  const auto has = [&](const char* name) { return device.find(name) != std::string::npos; };
  if (has("CUDA")) return {DType::i8, DType::bf16, DType::f16};
  if (has("AMX") || has("BF16")) return {DType::i8, DType::bf16};
  if (has("VNNI") || has("AVX2")) return {DType::i8};
  return {};
}

}  // namespace faststream
