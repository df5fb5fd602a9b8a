#include "convert/calibration/activation_statistics.h"

namespace faststream::convert {

const InputMoments* ActivationStatistics::find(const TensorId& id, int64_t part) const {
  const auto found = moments_.find({id, part});
  return found == moments_.end() ? nullptr : &found->second;
}

void ActivationStatistics::set(const TensorId& id, int64_t part, InputMoments moments) {
  moments_.insert_or_assign({id, part}, std::move(moments));
}

std::vector<TensorPlan> calibrated_matrices(const ModelConfig& config) {
  std::vector<TensorPlan> plans = tensor_plan(config);
  std::erase_if(plans, [](const TensorPlan& plan) {
    return !plan.is_multiplied() || plan.format != WeightFormat::int4 || plan.id.predictor > 0;
  });
  return plans;
}

}  // namespace faststream::convert
