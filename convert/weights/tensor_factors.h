// What balances the tensors of a model file, as it is made in its order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "convert/source_model.h"
#include "convert/weights/balance.h"
#include "convert/weights/tensor_stream.h"
#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream::convert {

class TensorFactors {
 public:
  /// plans: tensor_plan(config). All outlive this. `on_block` is called as by TensorStream::add().
  TensorFactors(const ModelConfig& config, std::span<const TensorPlan> plans,
                const SourceModel& source, TensorStream& stream,
                std::function<void(uint64_t)> on_block);

  /// What plans[n] is multiplied with, once, those of all before having been taken: what gives a
  /// matrix its input comes before it.
  [[nodiscard]] TensorStream::Factors take(size_t n);

 private:
  void balance(const Balanced& balanced);

  const ModelConfig& config_;
  std::span<const TensorPlan> plans_;
  const SourceModel& source_;
  TensorStream& stream_;
  std::function<void(uint64_t)> on_block_;
  std::map<TensorId, TensorStream::Factors> factors_;  // of tensors to come
};

}  // namespace faststream::convert
