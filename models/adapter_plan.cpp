#include "models/adapter_plan.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace faststream {
namespace {

constexpr std::array kAdaptedKinds = {
    TensorKind::attention_qkv,   TensorKind::latent_q_down, TensorKind::latent_q,
    TensorKind::latent_kv,       TensorKind::attention_out, TensorKind::recurrent_in,
    TensorKind::recurrent_gates, TensorKind::recurrent_out, TensorKind::ffn_gate_up,
    TensorKind::ffn_up,          TensorKind::ffn_down,      TensorKind::shared_gate_up,
    TensorKind::shared_up,       TensorKind::shared_down};

// Of a matrix' a or b: as much of it as a rank has of the matrix' columns, or rows.
TensorPlan factor_of(const TensorPlan& matrix, TensorMember member, int64_t number,
                     WeightFormat format, int64_t rank) {
  const bool is_a = member == TensorMember::adapter_a;
  TensorPlan plan{.id = matrix.id, .format = format, .readers = matrix.readers};
  plan.id.member = member;
  plan.id.adapter = number;
  plan.name = tensor_name(plan.id);
  plan.shape = is_a ? std::vector{rank, matrix.shape[1]} : std::vector{matrix.shape[0], rank};
  if (matrix.split.columns == is_a) plan.split = matrix.split;
  if (matrix.heads.columns == is_a) plan.heads = matrix.heads;
  return plan;
}

}  // namespace

bool takes_adapter(const TensorPlan& plan) {
  const bool is_of_decoder = !plan.id.of_encoder && plan.id.predictor == 0;
  return is_of_decoder && plan.id.member == TensorMember::weights && plan.experts == 0 &&
         !is_of_gates(plan.activation) &&
         std::ranges::find(kAdaptedKinds, plan.id.kind) != kAdaptedKinds.end();
}

WeightFormat adapter_format(const ModelConfig& config) {
  const bool is_own =
      config.weight_format == WeightFormat::f32 || config.weight_format == WeightFormat::f16;
  return is_own ? config.weight_format : WeightFormat::bf16;
}

std::vector<TensorPlan> adapter_plan(const ModelConfig& config, const AdapterRanks& ranks,
                                     int64_t number) {
  std::vector<TensorPlan> plans;
  for (const TensorPlan& matrix : tensor_plan(config)) {
    const auto found = ranks.find(matrix.name);
    if (found == ranks.end()) continue;
    for (const TensorMember member : {TensorMember::adapter_a, TensorMember::adapter_b}) {
      plans.push_back(factor_of(matrix, member, number, adapter_format(config), found->second));
    }
  }
  return plans;
}

std::vector<TensorPlan> adapter_plans(const ModelConfig& config) {
  std::vector<TensorPlan> plans;
  for (size_t n = 0; n < config.adapters.size(); ++n) {
    std::ranges::move(adapter_plan(config, config.adapters[n], static_cast<int64_t>(n) + 1),
                      std::back_inserter(plans));
  }
  return plans;
}

int64_t most_adapter_rank(const ModelConfig& config) {
  int64_t most = 0;
  for (const AdapterRanks& ranks : config.adapters) {
    for (const auto& [name, rank] : ranks) most = std::max(most, rank);
  }
  return most;
}

}  // namespace faststream
