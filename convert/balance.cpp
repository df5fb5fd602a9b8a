#include "convert/balance.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace faststream {
namespace {

bool is_linear_in_up(const FeedForwardConfig& ffn) {
  return ffn.gated && !ffn.bias && ffn.activation != Activation::swiglu_clamped;
}

// Of all kinds of layers that have one: a plan's name does not tell its layer's kind.
bool can_balance(const ModelConfig& config) {
  return std::ranges::all_of(config.layer_kinds, [](const LayerConfig& layer) {
    if (!layer.experts) return is_linear_in_up(layer.ffn);
    return is_linear_in_up(layer.experts->each) &&
           (layer.experts->shared.size == 0 || is_linear_in_up(layer.experts->shared));
  });
}

}  // namespace

std::optional<Balanced> balanced_pair(const ModelConfig& config, std::span<const TensorPlan> plans,
                                      size_t n) {
  constexpr std::string_view kGateUp = "gate_up";
  const TensorPlan& gate_up = plans[n];
  const bool in_encoder = gate_up.name.starts_with(kEncoderPrefix);
  if (!gate_up.rotated || !gate_up.name.ends_with(kGateUp) ||
      !can_balance(in_encoder ? *config.encoder : config)) {
    return std::nullopt;
  }
  const std::string down =
      gate_up.name.substr(0, gate_up.name.size() - kGateUp.size()).append("down");
  const auto found = std::ranges::find(plans.subspan(n), down, &TensorPlan::name);
  if (found == plans.end() || !found->rotated) return std::nullopt;
  return Balanced{&gate_up, &*found};
}

std::vector<float> balancing_factors(int64_t middle, std::span<const double> gate_up,
                                     std::span<const double> down) {
  constexpr double kMost = 3;  // of logarithms: factors are from 1/20 to 20
  const auto n = static_cast<size_t>(middle);
  std::vector<float> factors(down.size(), 1.0F);
  for (size_t expert = 0; expert < down.size(); expert += n) {
    const std::span<const double> gates = gate_up.subspan(2 * expert, n);
    const std::span<const double> ups = gate_up.subspan(2 * expert + n, n);
    // Where one is zero so is the column's product, and any factor is as good. What is not finite is
    // refused when it is converted.
    const auto is_left = [&](size_t i) {
      const double product = gates[i] * ups[i] * down[expert + i];
      return !(product > 0 && std::isfinite(product));
    };
    const auto logarithm = [&](size_t i) {
      return (std::log(down[expert + i]) - std::log(gates[i]) - std::log(ups[i])) / 4;
    };
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      if (is_left(i)) continue;
      sum += logarithm(i);
      ++count;
    }
    for (size_t i = 0; i < n; ++i) {
      if (is_left(i)) continue;
      const double mean = sum / static_cast<double>(count);
      factors[expert + i] =
          static_cast<float>(std::exp(std::clamp(logarithm(i) - mean, -kMost, kMost)));
    }
  }
  return factors;
}

}  // namespace faststream
