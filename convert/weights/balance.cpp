#include "convert/weights/balance.h"

#include <cmath>

namespace faststream::convert {
namespace {

bool is_linear_in_up(const FeedForwardConfig& ffn) {
  return ffn.gated && !ffn.bias && !ffn.middle_norm && !is_of_gates(ffn.activation);
}

// Whether nothing but the layer's own output takes the values, as they are.
bool are_linear_in_values(const ModelConfig& config, int64_t n) {
  return !config.layer(n).attention().v_norm && !lends_kv(config, n);
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
  using enum TensorKind;
  const TensorPlan& plan = plans[n];
  if (plan.id.member != TensorMember::weights) return std::nullopt;
  const auto find = [&](const TensorId& id) -> const TensorPlan* {
    const auto found = std::ranges::find(plans.subspan(n), id, &TensorPlan::id);
    return found != plans.end() ? &*found : nullptr;
  };
  const auto of_same_layer = [&](TensorKind kind) {
    TensorId id = plan.id;
    id.kind = kind;
    return find(id);
  };
  const auto rotated = [&](TensorKind kind) -> const TensorPlan* {
    const TensorPlan* found = of_same_layer(kind);
    return found != nullptr && found->rotated ? found : nullptr;
  };
  const auto given_by_norm = [&](const TensorPlan* matrix) {
    return Balanced{.matrix = matrix, .norm = &plan, .bias = find(bias_of(plan.id))};
  };
  const auto given_by_values = [&](const TensorPlan* matrix) {
    return Balanced{.matrix = matrix, .values = &plan, .bias = find(bias_of(plan.id))};
  };
  const auto given_by_gates = [&](const TensorPlan* matrix) {
    return Balanced{.matrix = matrix, .gate_up = &plan};
  };

  const ModelConfig& stack = stack_of(config, plan.id);
  if (!is_of_layers(plan.id.kind)) return std::nullopt;
  const LayerConfig& layer = stack.layer(plan.id.n);
  Balanced balanced;
  switch (plan.id.kind) {
    case attention_norm:
      if (!layer.parallel && layer.mixers.size() == 1 && !layer.laurel) {
        balanced = given_by_norm(rotated(attention_qkv));
      }
      break;
    case ffn_norm:
      if (!layer.parallel) balanced = given_by_norm(rotated(ffn_tensors(layer.ffn).up));
      break;
    case attention_qkv:
      if (plan.heads.dim != 0 && are_linear_in_values(stack, plan.id.n)) {
        balanced = given_by_values(of_same_layer(attention_out));
      }
      break;
    case latent_q_norm:
      balanced = given_by_norm(rotated(latent_q));
      break;
    case latent_v:
      if (plan.heads.dim != 0) balanced = given_by_values(of_same_layer(attention_out));
      break;
    case cross_kv:
      if (plan.heads.dim != 0) balanced = given_by_values(of_same_layer(cross_out));
      break;
    case ffn_gate_up:
      if (is_linear_in_up(layer.ffn)) balanced = given_by_gates(rotated(ffn_down));
      break;
    case experts_gate_up:
      if (is_linear_in_up(layer.experts->each)) balanced = given_by_gates(rotated(experts_down));
      break;
    case shared_gate_up:
      if (is_linear_in_up(layer.experts->shared)) balanced = given_by_gates(rotated(shared_down));
      break;
    default:
      break;
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

}  // namespace faststream::convert
