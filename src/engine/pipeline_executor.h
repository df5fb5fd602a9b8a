// Steps that stages compute one after the other, each on its layers of the model (models/shares.h),
// while other steps are in other stages. Rank 0 is of the first one, and tells the ranks of all
// what to do, in one order. From a stage to the next goes the residual stream of a step's tokens,
// in float32, so that what is computed is what one device computes; from the last back to the first
// that of the rows whose logits are wanted. The first one makes logits of it, and chooses. What
// predictors read goes the same way, of all tokens; they run in the first stage alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/rank_link.h"
#include "engine/executor.h"
#include "engine/ranked_executor.h"
#include "models/config.h"

namespace faststream {

/// What the last stage has of steps for a rank of the first one.
class StageRows {
 public:
  /// Waits for those of a step, counted from 1; empty where they were taken before. Those of steps
  /// before it stay until they are asked for, which few are not: of steps that failed.
  RankLink::Bytes take(RankLink& link, const RankPlace& place, int64_t step);

 private:
  int64_t n_come_ = 0;
  std::map<int64_t, RankLink::Bytes> waiting_;
};

/// Rank 0's. forward() returns once the first stage is done: then the next step may begin, by
/// another thread, while one waits for the choices of this one.
///
/// Where a rank fails, all calls throw Error from then on.
class PipelineExecutor final : public RankedExecutor {
 public:
  /// own: the executor of rank 0, of so many stages. config: that of a rank's share of all layers,
  /// whose caches others keep books of. The links, of all ranks and of those of the first stage,
  /// must outlive this.
  PipelineExecutor(std::unique_ptr<DeviceExecutor> own, ModelConfig config, RankLink& link,
                   RankLink& of_stage);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  /// Of the first stage's ranks.
  [[nodiscard]] std::unique_ptr<Executor> make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) override;
  /// Models with an encoder do not run in stages.
  void read_sources(const Batch& batch) override;
  void forward(const Batch& batch) override;
  /// Of the last step that was begun. rules must stay until the choices have been waited for, by
  /// one thread at a time, those of earlier steps first; or until they are gone.
  std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) override;
  /// Of the last step, which nobody else waits for.
  std::vector<float> logits() override;
  void wait() override {}

 private:
  class Predictor;
  class StepChoices;

  std::unique_ptr<Choices> choose(int64_t step, std::span<const SamplingRow> rules);
  void finish(int64_t step, std::span<const std::byte> rows);

  ModelConfig config_;
  StageRows rows_;          // of who waits
  int64_t n_begun_ = 0;     // steps, guarded by device()
  int64_t n_finished_ = 0;  // the step that the device has logits of, likewise
};

/// What a rank other than 0 does, as follow() (engine/ranked_executor.h). executor: of its place.
/// of_stage: among the ranks of its stage.
void follow_stage(DeviceExecutor& executor, RankLink& link, RankLink& of_stage);

}  // namespace faststream
