// Steps that several ranks compute together. Rank 0 has a Runner, whose executor tells all others
// what to do; each computes on its share of the model (models/shares.h), and all on every step. So
// it is with steps of predictors, whose hidden states each rank has of its own steps.
#pragma once

#include <map>
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

/// Rank 0's, of a model or of a predictor: has the others do what it does.
class RankedExecutor : public LeadingExecutor {
 public:
  /// own: the executor of rank 0. The link must outlive this.
  RankedExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link)
      : RankedExecutor(std::move(own), link, link) {}

  [[nodiscard]] std::unique_ptr<Executor> make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) override;
  void read_sources(const Batch& batch) override;
  void forward(const Batch& batch) override;
  std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) override;
  std::vector<float> logits() override;
  void copy(std::span<const std::vector<PageCopy>> copies) override;
  void take_hidden_states(std::span<const int32_t> rows) override;
  void take_own_states(std::span<const int32_t> rows) override;
  void keep_hidden_states(int32_t first, int32_t count, int32_t to) override;
  void take_kept_states(std::span<const int32_t> rows) override;
  void compact_kept_states(std::span<const int32_t> rows) override;

 protected:
  /// link: of all ranks that listen; sharing: of those that share the model's steps.
  RankedExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link, RankLink& sharing)
      : LeadingExecutor(std::move(own), link), sharing_(sharing) {}
  /// A predictor's, see LeadingExecutor.
  RankedExecutor(std::unique_ptr<DeviceExecutor> own, const RankedExecutor& leader, RankPart part)
      : LeadingExecutor(std::move(own), leader, part), sharing_(leader.sharing_) {}

  [[nodiscard]] RankLink& sharing() const { return sharing_; }
  /// Of a predictor here, once the others are told to make theirs.
  std::unique_ptr<DeviceExecutor> make_own_predictor(size_t predictor, const RunnerLimits& limits);

 private:
  void with_rows(RankCommand command, std::span<const int32_t> rows,
                 void (Executor::*task)(std::span<const int32_t>));

  RankLink& sharing_;
};

/// What a rank other than 0 has of a model and its predictors, and does with them.
class FollowingParts {
 public:
  /// sharing: the link of those that share the steps. Both must outlive this.
  FollowingParts(DeviceExecutor& model, RankLink& sharing) : model_(model), sharing_(sharing) {}

  /// Any command but those of stages and to end; the message goes on behind the part.
  void obey(RankCommand command, RankPart part, MessageReader& message);

 private:
  struct Predictor {
    std::unique_ptr<DeviceExecutor> executor;
    Batch batch = {};
  };

  [[nodiscard]] DeviceExecutor& executor(RankPart part);

  DeviceExecutor& model_;
  RankLink& sharing_;
  Batch batch_;  // of the last step, which the device may still read
  std::map<RankPart, Predictor> predictors_;
};

/// What a rank other than 0 does: what rank 0's executor tells, until it ends. Throws Error when
/// the device fails or rank 0 has ended otherwise.
void follow(DeviceExecutor& executor, RankLink& link);

}  // namespace faststream
