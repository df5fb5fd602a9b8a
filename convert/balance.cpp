#include "convert/balance.h"

#include <cmath>
#include <string_view>
#include <utility>

namespace faststream {
namespace {

bool is_linear_in_up(const FeedForwardConfig& ffn) {
  return ffn.gated && !ffn.bias && ffn.activation != Activation::swiglu_clamped;
}

// These two are of all kinds of layers: a plan's name does not tell its layer's kind.
bool has_linear_middles(const ModelConfig& config) {
  return std::ranges::all_of(config.layer_kinds, [](const LayerConfig& layer) {
    if (!layer.experts) return is_linear_in_up(layer.ffn);
    return is_linear_in_up(layer.experts->each) &&
           (layer.experts->shared.size == 0 || is_linear_in_up(layer.experts->shared));
  });
}
bool has_norms_of_one_matrix(const ModelConfig& config) {
  return std::ranges::none_of(config.layer_kinds, &LayerConfig::parallel);
}

// e^logarithm, over their geometric mean; 1 where that is not finite. Where a factor's weights are
// zero, any would do; those that are not finite are refused when they are converted.
void append_factors(std::span<const double> logarithms, std::vector<float>& factors) {
  constexpr double kMost = 3;  // of logarithms: factors are from 1/20 to 20
  double sum = 0;
  size_t count = 0;
  for (const double logarithm : logarithms) {
    if (!std::isfinite(logarithm)) continue;
    sum += logarithm;
    ++count;
  }
  for (const double logarithm : logarithms) {
    const double value = logarithm - sum / static_cast<double>(count);
    factors.push_back(std::isfinite(value)
                          ? static_cast<float>(std::exp(std::clamp(value, -kMost, kMost)))
                          : 1.0F);
  }
}

// Which of `values` elements is summed for element c of `queries`.
size_t value_of_query(int64_t head_dim, size_t c, size_t values, size_t queries) {
  const auto dim = static_cast<size_t>(head_dim);
  return c / dim / (queries / values) * dim + c % dim;
}

}  // namespace

std::optional<Balanced> balanced_matrix(const ModelConfig& config,
                                        std::span<const TensorPlan> plans, size_t n) {
  const TensorPlan& plan = plans[n];
  const ModelConfig& stack = plan.name.starts_with(kEncoderPrefix) ? *config.encoder : config;
  const auto without = [&plan](std::string_view end) {
    return plan.name.substr(0, plan.name.size() - end.size());
  };
  const auto find = [&](const std::string& name) -> const TensorPlan* {
    const auto found = std::ranges::find(plans.subspan(n), name, &TensorPlan::name);
    return found != plans.end() ? &*found : nullptr;
  };
  const auto rotated = [&](const std::string& name) -> const TensorPlan* {
    const TensorPlan* found = find(name);
    return found != nullptr && found->rotated ? found : nullptr;
  };
  Balanced balanced;
  constexpr std::string_view kGateUp = "gate_up";
  if (plan.heads.dim != 0 && plan.role == TensorRole::matrix && !plan.heads.columns) {
    balanced.values = &plan;
    balanced.bias = find(plan.name + "_bias");
    const auto sums = std::ranges::find_if(
        plans.subspan(n), [](const TensorPlan& other) { return other.heads.columns; });
    balanced.matrix = &*sums;
  }
  if (plan.name.ends_with(kGateUp) && plan.rotated && has_linear_middles(stack)) {
    balanced.gate_up = &plan;
    balanced.matrix = rotated(without(kGateUp) + "down");
  }
  if (has_norms_of_one_matrix(stack)) {
    for (const auto& [norm, matrix] :
         {std::pair<std::string_view, const char*>{".attention_norm", ".attention_qkv"},
          {".ffn_norm", ".ffn_gate_up"},
          {".ffn_norm", ".ffn_up"}}) {
      if (!plan.name.ends_with(norm) || balanced.matrix != nullptr) continue;
      balanced.norm = &plan;
      balanced.bias = find(plan.name + "_bias");
      balanced.matrix = rotated(without(norm) + matrix);
    }
  }
  if (balanced.matrix == nullptr) return std::nullopt;
  return balanced;
}

std::vector<float> middle_factors(int64_t inputs, std::span<const double> gate_up,
                                  std::span<const double> matrix) {
  const auto n = static_cast<size_t>(inputs);
  std::vector<double> logarithms(n);
  std::vector<float> factors;
  for (size_t at = 0; at < matrix.size(); at += n) {
    const std::span<const double> gates = gate_up.subspan(2 * at, n);
    const std::span<const double> ups = gate_up.subspan(2 * at + n, n);
    for (size_t i = 0; i < n; ++i) {
      logarithms[i] = (std::log(matrix[at + i]) - std::log(gates[i]) - std::log(ups[i])) / 4;
    }
    append_factors(logarithms, factors);
  }
  return factors;
}

std::vector<float> value_factors(int64_t head_dim, std::span<const double> values,
                                 std::span<const double> matrix) {
  std::vector<double> of_matrix(values.size());
  for (size_t c = 0; c < matrix.size(); ++c) {
    of_matrix[value_of_query(head_dim, c, values.size(), matrix.size())] += matrix[c];
  }
  std::vector<double> logarithms(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    logarithms[i] = (std::log(of_matrix[i]) - std::log(values[i])) / 4;
  }
  std::vector<float> factors;
  append_factors(logarithms, factors);
  return factors;
}

std::vector<float> factors_of_queries(int64_t head_dim, std::span<const float> of_values,
                                      size_t queries) {
  std::vector<float> factors(queries);
  for (size_t c = 0; c < queries; ++c) {
    factors[c] = of_values[value_of_query(head_dim, c, of_values.size(), queries)];
  }
  return factors;
}

std::vector<float> norm_factors(std::span<const double> matrix) {
  std::vector<double> logarithms;
  for (const double square : matrix) logarithms.push_back(3 * std::log(square) / 8);
  std::vector<float> factors;
  append_factors(logarithms, factors);
  return factors;
}

}  // namespace faststream
