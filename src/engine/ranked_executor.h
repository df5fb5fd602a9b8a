// Steps that several ranks compute together. Rank 0 has a Runner, whose executor tells all others
// what to do; each computes on its share of the model (models/shares.h), and all on every step.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/rank_link.h"
#include "engine/executor.h"
#include "engine/leading_executor.h"

namespace faststream {

/// Of all ranks that share a step: has the device begin with what it was given. A device's step
/// waits for those of all others. What else a thread may have to do with its device, as to allocate
/// memory, can wait for the step, and keep the other threads from their devices: so all threads of
/// a process have begun a step before one goes on.
void begin_together(DeviceExecutor& executor, RankLink& link);

/// Rank 0's: has the others do what it does.
class RankedExecutor final : public LeadingExecutor {
 public:
  /// own: the executor of rank 0. The link must outlive this.
  RankedExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link)
      : LeadingExecutor(std::move(own), link) {}

  void read_sources(const Batch& batch) override;
  void forward(const Batch& batch) override;
  std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) override;
  std::vector<float> logits() override;
  void copy(std::span<const std::vector<PageCopy>> copies) override;
};

/// What a rank other than 0 does: what rank 0's executor tells, until it ends. Throws Error when
/// the device fails or rank 0 has ended otherwise.
void follow(DeviceExecutor& executor, RankLink& link);

}  // namespace faststream
