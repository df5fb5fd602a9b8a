#include "convert/calibration/activation_statistics.h"

namespace faststream::convert {

const InputMoments* ActivationStatistics::find(const TensorId& id, int64_t part) const {
  const auto found = moments_.find({id, part});
  return found == moments_.end() ? nullptr : &found->second;
}

void ActivationStatistics::set(const TensorId& id, int64_t part, InputMoments moments) {
  moments_.insert_or_assign({id, part}, std::move(moments));
}

}  // namespace faststream::convert
